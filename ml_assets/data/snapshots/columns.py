"""Columns of a feature table that a training set reads: they decide what leaves the files, and what is stale.

Imports nothing, because the declarations of all models read it.
"""

from collections.abc import Iterable


def columns_read(inputs: Iterable[str], *roles: str | None) -> tuple[str, ...]:
    """Return the columns that leave the files of a feature table for a training set, sorted: the inputs of the model,
    and those of its rules. They are also the columns whose change makes a training stale."""
    return tuple(sorted({*inputs, *(one for one in roles if one)}))

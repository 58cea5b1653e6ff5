"""Findings about the columns of one partition, before its values are read. Cheap: names and types only.

`check.py` checks values, and only of partitions that pass here.
"""

import polars as pl

from ml_assets.data.validation.column_types import NUMERIC
from ml_assets.data.validation.contract import Contract, SchemaDrift, schema_drift
from ml_assets.data.validation.explain import shown, texts
from ml_assets.data.validation.findings import Finding
from resources.words import name_some

LISTED = 8
"""Names that one sentence lists. It counts the others."""


def schema_findings(frame: pl.DataFrame, contract: Contract) -> list[Finding]:
    """Return findings about the frame's columns: missing, unexpected, of the wrong type, or of another table."""
    drift = schema_drift(contract, frame)
    if not drift:
        return []
    if 2 * len(drift.removed) > len(contract.names):
        return [_another_table(frame, contract, drift)]
    return [
        *(_missing(name, dtype, drift) for name, dtype in drift.removed),
        *(_unexpected(name, dtype) for name, dtype in drift.added),
        *(_wrong_type(frame, contract, name, expected, found) for name, expected, found in drift.changed),
    ]


def _another_table(frame: pl.DataFrame, contract: Contract, drift: SchemaDrift) -> Finding:
    have = name_some(frame.columns, LISTED) or "no columns at all"
    return Finding(
        rule="another_table",
        measured=f"{len(contract.names) - len(drift.removed)} of {len(contract.names)} columns; found {have}",
        limit=f"the columns {name_some(contract.names, LISTED)}",
        failing_rows=frame.height,
        explanation=(
            f"Most of this table's columns are missing "
            f"({name_some([name for name, _ in drift.removed], LISTED)}), so this is most likely another "
            f"table's file. Check the file that the source read for this partition."
        ),
    )


def _missing(name: str, dtype: str, drift: SchemaDrift) -> Finding:
    candidates = [other for other, found in drift.added if found == dtype]
    renamed = f" It may have been renamed to {candidates[0]!r}." if len(candidates) == 1 else ""
    return Finding(
        rule="missing_column",
        column=name,
        measured="no such column",
        limit=f"a column of type {dtype}",
        explanation=(
            f"The column {name!r} is missing.{renamed} Fix the source, or remove the column from the contract "
            f"if nothing reads it."
        ),
    )


def _unexpected(name: str, dtype: str) -> Finding:
    return Finding(
        rule="unexpected_column",
        column=name,
        measured=f"a column of type {dtype}",
        limit="no such column",
        explanation=(
            f"The contract does not know the column {name!r}. Add it to the contract, or drop it in the "
            "source."
        ),
    )


def _wrong_type(frame: pl.DataFrame, contract: Contract, name: str, expected: str, found: str) -> Finding:
    column = frame.get_column(name)
    failing, examples, hint = (
        column.len(),
        _examples(column, contract),
        f"Cast it in the source to {expected}.",
    )
    if expected in NUMERIC and found == "string":
        not_numbers = column.filter(column.is_not_null() & column.cast(pl.Float64, strict=False).is_null())
        if not_numbers.len():
            failing, examples = (
                not_numbers.len(),
                _examples(not_numbers.unique(maintain_order=True), contract),
            )
            hint = f"{not_numbers.len()} of its strings are not numbers."
        else:
            hint = f"All its strings are numbers: cast them in the source to {expected}."
    elif expected == "datetime" and found.endswith(", UTC]"):
        hint = f'Times are stored in microseconds: pl.col("{name}").dt.cast_time_unit("us") converts them.'
    elif expected == "datetime" and found.startswith("datetime["):
        hint = "Times are stored in microseconds and UTC: convert them in the source, which knows their zone."
    elif found == "null":
        hint = "All its values are null, so the source could not infer the type: set the type there."
    return Finding(
        rule="wrong_type",
        column=name,
        measured=found,
        limit=expected,
        failing_rows=failing,
        examples=examples,
        explanation=f"The column {name!r} holds {found} where {expected} is expected. {hint}",
    )


def _examples(column: pl.Series, contract: Contract) -> tuple[str, ...]:
    return tuple(texts(shown(column.head(3), contract)))

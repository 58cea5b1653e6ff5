"""Columns of its inputs that a feature function reads, as polars asks for them.

A function gets lazy frames. polars' plan tells each of them which columns it needs, filters included. So a function
that selects columns before it collects reads only these; one that collects a whole frame reads all of it. Not here:
comparing the columns with those on main (`partition_state.py`).
"""

from collections.abc import Iterator, Mapping

import polars as pl
from polars.io.plugins import register_io_source


class WatchedInputs:
    """Inputs of one call of a feature function, and the columns that were read of each so far."""

    def __init__(self, tables: Mapping[str, pl.LazyFrame]) -> None:
        """`tables`: table → rows."""
        self._read: dict[str, set[str]] = {table: set() for table in tables}
        self.frames: Mapping[str, pl.LazyFrame] = {
            table: _watched(rows, self._read[table]) for table, rows in tables.items()
        }
        """Table → the same rows, watched."""

    def columns_read(self, table: str) -> tuple[str, ...]:
        """Return the columns of `table` that were read, sorted."""
        return tuple(sorted(self._read[table]))


def _watched(rows: pl.LazyFrame, read: set[str]) -> pl.LazyFrame:
    """Return `rows` as a source that adds the names of the columns it is asked for to `read`."""
    schema = rows.collect_schema()

    def answer(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        names = schema.names() if with_columns is None else with_columns
        # Asked for no column, as by a cross join, polars needs the number of rows. A selection of none has no rows.
        counted = [] if names else schema.names()[:1]
        read.update(names, counted)
        asked = rows.select(*names, *counted)
        # The limit comes first: of `filter(…).head(n)` polars asks only for the filter.
        if n_rows is not None:
            asked = asked.head(n_rows)
        if predicate is not None:
            asked = asked.filter(predicate)
        yield asked.collect().drop(counted)

    return register_io_source(answer, schema=schema)

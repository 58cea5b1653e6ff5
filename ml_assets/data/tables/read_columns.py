"""Columns of its inputs that a feature function reads, as polars asks for them.

A function gets lazy frames. polars' plan tells each of them which columns it needs, filters included. So a function
that selects columns before it collects reads only these; one that collects a whole frame reads all of it. A frame is
read in its process and during its call, or not at all: a read elsewhere would be in no record. Not here: comparing the
columns with those on main (`partition_state.py`), and what a function keeps in variables (`kept_state.py`).
"""

import os
import uuid
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

import polars as pl
from polars.io.plugins import register_io_source

_OPEN: "weakref.WeakValueDictionary[str, WatchedInputs]" = weakref.WeakValueDictionary()
"""Inputs of the calls in progress, by a name that a copied or pickled frame keeps."""


class UnseenRead(Exception):
    """An input was read in another process, or after its call. The message says what to do."""


class WatchedInputs:
    """Inputs of one call of a feature function, and the columns that were read of each. The context is the call."""

    def __init__(self, tables: Mapping[str, pl.LazyFrame]) -> None:
        """`tables`: table → rows."""
        self._read: dict[str, set[str]] = {table: set() for table in tables}
        self._name = uuid.uuid4().hex
        _OPEN[self._name] = self
        self.frames: Mapping[str, pl.LazyFrame] = {
            table: _watched(rows, table, self._name) for table, rows in tables.items()
        }
        """Table → the same rows, watched."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the call: its frames cannot be read any more."""
        _OPEN.pop(self._name, None)

    def add(self, table: str, columns: list[str]) -> None:
        """Note that columns of `table` are read."""
        self._read[table].update(columns)

    def columns_read(self, table: str) -> tuple[str, ...]:
        """Return the columns of `table` that were read, sorted; none if nothing noticed a read of it."""
        return tuple(sorted(self._read[table]))


def _watched(rows: pl.LazyFrame, table: str, name: str) -> pl.LazyFrame:
    """Return `rows` as a source that notes the columns it is asked for in the open inputs called `name`."""
    schema, process = rows.collect_schema(), os.getpid()

    def answer(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        if os.getpid() != process:
            raise UnseenRead(
                f"{table} is read in another process, so no record sees which columns: collect what it needs in the "
                "feature function, and pass the rows"
            )
        inputs = _OPEN.get(name)
        if inputs is None:
            raise UnseenRead(
                f"{table} is read by a frame of an earlier call: use the inputs of each call, and keep none of them"
            )
        names = schema.names() if with_columns is None else with_columns
        # Asked for no column, as by a cross join, polars needs the number of rows. A selection of none has no rows.
        counted = [] if names else schema.names()[:1]
        inputs.add(table, [*names, *counted])
        asked = rows.select(*names, *counted)
        # The limit comes first: of `filter(…).head(n)` polars asks only for the filter.
        if n_rows is not None:
            asked = asked.head(n_rows)
        if predicate is not None:
            asked = asked.filter(predicate)
        yield asked.collect().drop(counted)

    return register_io_source(answer, schema=schema)

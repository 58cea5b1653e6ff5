"""Partitions computed from other tables: choose their inputs and call the feature function on whole ranges.

A function gets lazy frames. polars' plan tells each of them which columns it needs, filters included. So a function
that selects columns before it collects reads only these; one that collects a whole frame reads all of it. A frame is
read in its process and during its call, or not at all: a read elsewhere would be in no record.

Here: choosing, watching and reading inputs, splitting the function's result by partition. Not here: comparing columns
with those on main (`partition_state`), variables that a function keeps (`kept_state`), validating and landing the
result (`publish`), and the function itself, which the user writes.
"""

import os
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import TracebackType
from typing import Self

import polars as pl
from polars.io.plugins import register_io_source

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.kept_state import StateKept, keeping_nothing
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming
from ml_assets.data.tables.user_code import FeatureFunctionError, answering, place_of
from resources.ledger import Ledger
from resources.words import name_some

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


FeatureFunction = Callable[[Mapping[str, pl.LazyFrame], date, date], pl.DataFrame | pl.LazyFrame]
"""`(inputs: table → rows, first day, last day) -> rows of the partitions that cover these days`. Of an hourly table,
first and last hour: the moments (UTC) at which they begin."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Requested keys that can be built, and the reasons why the others cannot."""

    ranges: tuple[tuple[str, ...], ...]
    """Runs of neighbouring keys that can be built, in order. The function is called once per range."""
    refused: Mapping[str, str]
    """Key → sentence that names the inputs it lacks."""
    missing: Mapping[str, tuple[str, ...]]
    """Table → sorted keys that materializing can fix, without rejected keys."""


def plan(
    reader: TableReader,
    ledger: Ledger,
    tables: DeclaredTables,
    inputs: Sequence[InputTable],
    keys: Sequence[str],
    cadence: Cadence,
) -> Plan:
    """Ask the guard which of `keys` can be built: all inputs of a key, at any depth, have to be usable."""
    bad: dict[str, Mapping[str, str]] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for table in inputs:
        wanted = sorted({needed for key in keys for needed in table.needed_for(key)})
        validation = validate_window(reader, ledger, tables, table.table, wanted)
        # Name the fault in a partition's rows or columns here: the builder's message shows it nowhere else.
        bad[table.table] = {
            key: validation.unusable.get(f"{table.table} {key}", why)
            for key, why in validation.barred.items()
        }
        for name, lacking in validation.to_build.items():
            missing[name] = tuple(sorted({*missing.get(name, ()), *lacking}))
    refused: dict[str, str] = {}
    ranges: list[list[str]] = []
    previous: str | None = None
    for key in sorted(keys):
        reasons = [
            f"{table.table} {needed} {bad[table.table][needed]}"
            for table in inputs
            for needed in table.needed_for(key)
            if needed in bad[table.table]
        ]
        if reasons:
            refused[key] = name_some(reasons)
            continue
        if (
            previous is not None
            and ranges
            and ranges[-1][-1] == previous
            and cadence.are_neighbours(previous, key)
        ):
            ranges[-1].append(key)
        else:
            ranges.append([key])
        previous = key
    return Plan(
        ranges=tuple(tuple(r) for r in ranges),
        refused=refused,
        missing=missing,
    )


def in_pieces(
    reader: TableReader, inputs: Sequence[InputTable], ranges: Sequence[Sequence[str]], most_bytes: float
) -> Iterator[tuple[str, ...]]:
    """Yield `ranges` in pieces of neighbouring keys, so that one call does not need the inputs of years in memory.

    A piece ends when the input files of its keys, beyond those of its first key, have `most_bytes`. What the first key
    looks back at does not count: each piece needs it again.
    """
    for keys in ranges:
        piece: list[str] = []
        read: set[tuple[str, str]] = set()
        size = 0
        for key in keys:
            needed = {(one.table, n) for one in inputs for n in one.needed_for(key)} - read
            added = sum(file.size for table, n in needed for file in reader.files(table, [n])) if piece else 0
            if piece and size + added > most_bytes:
                yield tuple(piece)
                piece, read, size, added = [], set[tuple[str, str]](), 0, 0
                needed = {(one.table, n) for one in inputs for n in one.needed_for(key)}
            piece.append(key)
            read |= needed
            size += added
        yield tuple(piece)


def derive(
    reader: TableReader,
    ledger: Ledger,
    inputs: Sequence[InputTable],
    ranges: Iterable[Sequence[str]],
    cadence: Cadence,
    function: FeatureFunction,
    partition_date: str,
) -> Iterator[Incoming]:
    """Call `function` once per range and yield its partitions in order.

    A partition is built from its inputs as they were known when it began (`InputTable.as_known`). So a range in which
    they changed is built in several calls.

    `partition_date` names the column of the result with the first day of each row's partition, or its hour. Raises
    `FeatureFunctionError`, also in place of errors that the function raises.
    """
    for keys in _known_alike(reader, ledger, inputs, ranges):
        needed = {t.table: sorted({n for key in keys for n in t.needed_for(key)}) for t in inputs}
        known = {t.table: t.as_known(reader, ledger, keys[0]) for t in inputs}
        first, _ = cadence.bounds(keys[0])
        _, last = cadence.bounds(keys[-1])
        scanned = {table: known[table].scan(table, wanted) for table, wanted in needed.items()}
        with WatchedInputs(scanned) as watched:
            rows = _answer(function, watched.frames, first, last)
        by_key = _split(rows, cadence, keys, partition_date, place_of(function))
        # Without a record, a table counts as read whole: the function may have read it where nothing notices.
        columns = {t.table: read for t in inputs if (read := watched.columns_read(t.table))}
        for key in keys:
            yield Incoming(
                key=key,
                data=by_key[key],
                inputs={t.table: known[t.table].input_digests(t.table, t.needed_for(key)) for t in inputs},
                read_columns=columns,
                read_digests={
                    t.table: known[t.table].read_digests(t.table, t.needed_for(key), columns[t.table])
                    for t in inputs
                    if t.table in columns
                },
                behind=reader.behind({t.table: t.needed_for(key) for t in inputs}),
            )


def _answer(
    function: FeatureFunction, frames: Mapping[str, pl.LazyFrame], first: date, last: date
) -> pl.DataFrame:
    try:
        with keeping_nothing(function):
            return answering(function)(frames, first, last)
    except StateKept as error:
        raise FeatureFunctionError(f"{place_of(function)}: {error}") from None


def _known_alike(
    reader: TableReader, ledger: Ledger, inputs: Sequence[InputTable], ranges: Iterable[Sequence[str]]
) -> Iterator[Sequence[str]]:
    """Yield `ranges` in parts within which every input partition has one version."""
    for keys in ranges:
        part: list[str] = []
        for key in keys:
            if part and not all(_is_same_version(reader, ledger, one, part[0], key) for one in inputs):
                yield part
                part = []
            part.append(key)
        yield part


def _is_same_version(reader: TableReader, ledger: Ledger, source: InputTable, first: str, key: str) -> bool:
    """True if what `key` reads of an input was known with the same content when partition `first` began."""
    before, now = source.as_known(reader, ledger, first), source.as_known(reader, ledger, key)
    wanted = source.needed_for(key)
    return before is now or all(
        before.digests(source.table).get(one) == now.digests(source.table).get(one) for one in wanted
    )


def _split(
    rows: pl.DataFrame, cadence: Cadence, keys: Sequence[str], column: str, place: str
) -> dict[str, pl.DataFrame]:
    is_hourly = cadence.kind == "hourly"
    dtype = pl.Datetime("us", "UTC") if is_hourly else pl.Date()
    begin = "hour" if is_hourly else "first day"
    if column not in rows.columns or rows.schema[column] != dtype:
        raise FeatureFunctionError(
            f"{place}: the feature function must return a column {column!r} of type {dtype}, the {begin} of each "
            f"row's partition; it returned {', '.join(f'{name} ({it})' for name, it in rows.schema.items())}"
        )
    if nulls := rows.get_column(column).null_count():
        raise FeatureFunctionError(
            f"{place}: {column!r} is null in {nulls} of the {rows.height} rows that the feature function returned for "
            f"{keys[0]} to {keys[-1]}: give each row the {begin} of its partition, or leave it out"
        )
    firsts = {cadence.bounds(key)[0]: key for key in keys}
    parts = rows.partition_by(column, as_dict=True).items()
    found = {firsts.get(first, str(first)): part for (first,), part in parts}
    stray = sorted(found.keys() - set(keys))
    if stray:
        raise FeatureFunctionError(
            f"{place}: for partitions {keys[0]} to {keys[-1]}, the feature function returned rows whose "
            f"{column!r} is {name_some(stray)}: filter the rows by the {'hours' if is_hourly else 'days'} of the call, "
            f"and name each row's partition by its {begin}"
        )
    return {key: found.get(key, rows.clear()) for key in keys}

"""Current declarations of the tables. A partition is current if it was made by its table's declaration.

Here: the declarations as values, and the input partitions that each requires. The guard compares partitions with them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import Any, Self

from ml_assets.data.tables.cadence import UNPARTITIONED, Cadence, fit_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Retain, TableSpec
from ml_assets.data.validation.column_types import Schema, schema_hash
from ml_assets.foundation.days import begin_of
from resources.ledger import Ledger

_DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class DeclaredTable:
    """The part of a table's declaration that decides if a partition may be used."""

    table: str
    """Table id."""
    cadence: Cadence
    contract_digest: str
    rules_digest: str
    """`TableSpec.rules_digest`: contract, rules on volume and drift, quarantine and cadence."""
    columns: Schema
    """(name, type name) of the contract's columns, in order."""
    code_version: str
    inputs: Mapping[str, int | None]
    """Table id → lookback in partitions; None for a table without partitions, which is read whole."""
    retain: Retain | None = None
    """Partitions that stay on main; None: all."""
    deprecated: str = ""
    """Advice for readers of a deprecated table; empty if it is not deprecated."""
    days_begin_in: str = "UTC"
    """Time zone whose midnight begins a partition."""

    @classmethod
    def of(cls, spec: TableSpec) -> Self:
        """Return the declaration of the table in `spec`."""
        return cls(
            table=spec.table,
            cadence=spec.cadence,
            contract_digest=spec.contract.contract_digest,
            rules_digest=spec.rules_digest,
            columns=spec.contract.stored_schema,
            code_version=spec.code_version,
            inputs=dict(spec.inputs),
            retain=spec.retain,
            deprecated=spec.deprecated,
            days_begin_in=spec.contract.event_time_zone,
        )

    @property
    def schema_hash(self) -> str:
        """SHA-256 of the ordered columns, 64 hex digits."""
        return schema_hash(self.columns)

    def to_facts(self) -> dict[str, Any]:
        """Return the declaration as JSON values. The asset page shows them."""
        start, end = self.cadence.start, self.cadence.end
        return {
            "table": self.table,
            "cadence": self.cadence.kind,
            "start": start.isoformat() if start else None,
            "end": end.isoformat() if end else None,
            "contract_digest": self.contract_digest,
            "rules_digest": self.rules_digest,
            "code_version": self.code_version,
            "inputs": dict(self.inputs),
            "retain": self.retain.model_dump(exclude_none=True) if self.retain else None,
            "deprecated": self.deprecated,
            "days_begin_in": self.days_begin_in,
            "columns": [list(column) for column in self.columns],
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Inverse of `to_facts`."""
        start, end = (date.fromisoformat(facts[name]) if facts[name] else None for name in ("start", "end"))
        return cls(
            table=facts["table"],
            cadence=Cadence(facts["cadence"], start, end),
            contract_digest=facts["contract_digest"],
            rules_digest=facts["rules_digest"],
            columns=tuple((name, dtype) for name, dtype in facts["columns"]),
            code_version=facts["code_version"],
            inputs=facts["inputs"],
            deprecated=facts["deprecated"],
            days_begin_in=facts["days_begin_in"],
            retain=None if facts["retain"] is None else Retain.model_validate(facts["retain"]),
        )


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """Input table of a function, with its lookback."""

    table: str
    """Table id."""
    cadence: Cadence
    lookback: int = 0
    """Number of partitions to read before those of the partition that is built: of the input, or of the table that
    reads it if the input's are finer."""
    read_by: Cadence | None = None
    """Cadence of the table that reads it; None: that of the input."""
    days_begin_in: str = "UTC"
    """Time zone whose midnight begins a partition of the table that reads it."""

    def as_known(self, reader: TableReader, ledger: Ledger, key: str) -> TableReader:
        """Return a reader of this input as it was known when partition `key` of the table that reads it began.

        A row of `key` may be predicted at any moment of it, so a change that came later must not be seen.
        """
        first, _ = (self.read_by or self.cadence).bounds(key)
        return reader.as_known(self.table, begin_of(first, self.days_begin_in), ledger)

    def needed_for(self, key: str) -> tuple[str, ...]:
        """Return the keys that must exist to build `key`, oldest first. History ends where the input begins.

        Of finer partitions, those within the days of `key` and of its lookback; of coarser ones, those before the one
        that holds its first day, because that one is not over yet. A key that the table cannot have is returned as it
        is, so that the guard reports it as missing.
        """
        if self.cadence.kind == "none":
            return (UNPARTITIONED,)
        own = self.read_by or self.cadence
        match fit_of(own.kind, self.cadence.kind):
            case "same":
                keys = tuple(self.cadence.window(key, self.lookback + 1))
                return keys if keys[-1:] == (key,) else (key,)
            case "finer":
                return self._within(own, key)
            case "coarser":
                return self._before(own, key)
            case None:
                raise ValueError(f"{self.table} is {self.cadence.kind} and its reader {own.kind}")

    def _within(self, own: Cadence, key: str) -> tuple[str, ...]:
        first, last = own.bounds(key)
        # History reaches back to the start of the input, not to that of the table that reads it.
        begin, _ = own.bounds([*own.before(first, self.lookback), key][0])
        whole = Cadence(self.cadence.kind, first, last).keys(first, last)
        return tuple(dict.fromkeys([*self.cadence.keys(begin, first - _DAY), *whole]))

    def _before(self, own: Cadence, key: str) -> tuple[str, ...]:
        first, _ = own.bounds(key)
        *history, newest = self.cadence.before(first, self.lookback + 1)
        start = self.cadence.key_of(self.cadence.start or date.min)
        return (*(one for one in history if one >= start), newest)


Elsewhere = Callable[[str], DeclaredTable | None]
"""Function that returns the declaration of a table; None if nothing declares it."""


def _nowhere(_: str) -> None:
    return None


class DeclaredTables:
    """All declared tables of an installation."""

    def __init__(self, tables: Iterable[DeclaredTable], elsewhere: Elsewhere = _nowhere) -> None:
        """`elsewhere` is asked for the tables that `tables` lacks."""
        self._tables = {one.table: one for one in tables}
        self._elsewhere = cache(elsewhere)

    def completed_by(self, elsewhere: Elsewhere) -> Self:
        """Return these declarations, which ask `elsewhere` for others.

        For the files of one pipeline: its stored partitions may name inputs that these files do not name any more.
        """
        return type(self)(self._tables.values(), elsewhere)

    def find(self, table: str) -> DeclaredTable | None:
        """Return the declaration of `table`; None if nothing declares it."""
        return self._tables.get(table) or self._elsewhere(table)

    def every(self) -> list[DeclaredTable]:
        """Return all declarations, sorted by table, without those from elsewhere."""
        return [self._tables[name] for name in sorted(self._tables)]

    def retired(self, table: str, present: Collection[str]) -> Callable[[str], bool]:
        """Return the test that is true for a key that `table` does not retain, given the keys `present` on main.

        `present` is sorted once for all keys that are tested.
        """
        declared = self.find(table)
        if declared is None or declared.retain is None:
            return lambda key: False
        oldest = declared.retain.oldest(declared.cadence, present)
        return lambda key: key < oldest and key not in present

    def inputs_of(self, table: str) -> list[InputTable]:
        """Return the inputs of `table`, except those that have no declaration."""
        declared = self.find(table)
        if declared is None:
            return []
        return [
            InputTable(
                table=source,
                cadence=found.cadence,
                lookback=lookback or 0,
                read_by=declared.cadence,
                days_begin_in=declared.days_begin_in,
            )
            for source, lookback in declared.inputs.items()
            if (found := self.find(source)) is not None
        ]

    def with_inputs(self, table: str) -> list[DeclaredTable]:
        """Return the declarations of `table` and of all tables behind it, sorted by name."""
        found: dict[str, DeclaredTable] = {}
        todo = [table]
        while todo:
            declared = self.find(todo.pop())
            if declared is not None and declared.table not in found:
                found[declared.table] = declared
                todo += declared.inputs
        return [found[name] for name in sorted(found)]

    def in_building_order(self, tables: Iterable[str]) -> list[str]:
        """Return `tables` sorted so that each comes after its inputs."""
        found: dict[str, None] = {}

        def visit(table: str) -> None:
            if table in visited:
                return
            visited.add(table)
            declared = self.find(table)
            for source in sorted(declared.inputs if declared else ()):
                visit(source)
            found[table] = None

        visited: set[str] = set()
        wanted = set(tables)
        for table in sorted(wanted):
            visit(table)
        return [table for table in found if table in wanted]


NOTHING_DECLARED = DeclaredTables(())
"""Declarations where nobody knows any, as in a lake without its project."""

"""The tables as their declarations have them now: what a partition must be made with to be current.

Here: values, and which input partitions a declaration asks for. Comparing partitions with it is the guard's work.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Self

from ml_assets.tables.cadence import UNPARTITIONED, Cadence
from ml_assets.tables.spec import TableSpec
from ml_assets.validation.column_types import Schema, schema_hash


@dataclass(frozen=True, kw_only=True)
class DeclaredTable:
    """One declaration, as far as it decides whether a partition may be used."""

    table: str
    """Table id."""
    cadence: Cadence
    contract_digest: str
    rules_digest: str
    """`TableSpec.rules_digest`: contract, volume rule and cadence."""
    columns: Schema
    """Ordered (name, type name) that the contract asks for."""
    code_version: str
    inputs: Mapping[str, int | None]
    """Table id → lookback in partitions; None for a table without partitions, which is read whole."""

    @classmethod
    def of(cls, spec: TableSpec) -> Self:
        """The declaration behind `spec`."""
        return cls(
            table=spec.table,
            cadence=spec.cadence,
            contract_digest=spec.contract.contract_digest,
            rules_digest=spec.rules_digest,
            columns=spec.contract.stored_schema,
            code_version=spec.code_version,
            inputs=dict(spec.inputs),
        )

    @property
    def schema_hash(self) -> str:
        """SHA-256 of the ordered columns, 64 hex digits."""
        return schema_hash(self.columns)

    def to_facts(self) -> dict[str, Any]:
        """JSON values; the asset page shows them."""
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
        )


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A table that a function reads, and how much of it."""

    table: str
    """Table id."""
    cadence: Cadence
    lookback: int = 0
    """Partitions before the one being built."""

    def needed_for(self, key: str) -> tuple[str, ...]:
        """Keys that must exist to build `key`, oldest first. History ends where the table begins.

        A key that the table cannot have needs itself, so that it is found missing.
        """
        if self.cadence.kind == "none":
            return (UNPARTITIONED,)
        keys = tuple(self.cadence.window(key, self.lookback + 1))
        return keys if keys[-1:] == (key,) else (key,)


class DeclaredTables:
    """All declared tables of an installation."""

    def __init__(self, tables: Iterable[DeclaredTable]) -> None:
        self._tables = {one.table: one for one in tables}

    def find(self, table: str) -> DeclaredTable | None:
        """The declaration of `table`; None where nothing declares it."""
        return self._tables.get(table)

    def inputs_of(self, table: str) -> list[InputTable]:
        """The declared inputs of `table` that are declared themselves."""
        declared = self._tables.get(table)
        if declared is None:
            return []
        return [
            InputTable(table=source, cadence=self._tables[source].cadence, lookback=lookback or 0)
            for source, lookback in declared.inputs.items()
            if source in self._tables
        ]

    def in_building_order(self, tables: Iterable[str]) -> list[str]:
        """`tables`, each behind those it is made from."""
        found: dict[str, None] = {}

        def visit(table: str) -> None:
            if table in visited:
                return
            visited.add(table)
            declared = self._tables.get(table)
            for source in sorted(declared.inputs if declared else ()):
                visit(source)
            found[table] = None

        visited: set[str] = set()
        wanted = set(tables)
        for table in sorted(wanted):
            visit(table)
        return [table for table in found if table in wanted]

"""Retirement of partitions that their table does not retain any more: they leave main in one commit.

Their rows stay in the lake's history until garbage collection. What a declared table or training still reads is left on
main. Not here: the section `retain` (`retain.py`), garbage collection (`ml_assets.model.steps.waste`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ml_assets.data.tables import layout
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.data.tables.landing import CommitFacts, StoredPartition, land
from ml_assets.data.tables.reader import TableReader
from resources.lake import VersionedStore
from resources.ledger import Ledger
from resources.words import counted


@dataclass(frozen=True, kw_only=True)
class Retired:
    """Partitions of one table that are not retained."""

    table: str
    keys: tuple[str, ...]
    size: int
    """Bytes of their files on main."""


def not_retained(reader: TableReader, tables: DeclaredTables, windows: Mapping[str, int]) -> list[Retired]:
    """Return the partitions at the reader's commit that no declaration retains, by table.

    `windows` is table → newest partitions that trainings read. These stay, and so do those within the lookback of a
    feature table.
    """
    found: list[Retired] = []
    for table in reader.tables():
        declared = tables.find(table)
        if declared is None or declared.retain is None:
            continue
        present = reader.keys(table)
        newest = declared.cadence.newest_of(present, max(1, windows.get(table, 0)))
        if not newest:
            continue
        oldest = min(declared.retain.oldest(declared.cadence, present), newest[0])
        oldest = min([oldest, *_read_by_features(tables, declared, newest[-1])])
        keys = tuple(key for key in present if key < oldest)
        if keys:
            size = sum(one.size for one in reader.files(table, keys))
            found.append(Retired(table=table, keys=keys, size=size))
    return found


def retire(store: VersionedStore, ledger: Ledger, one: Retired, author: str) -> None:
    """Remove partitions and what was set aside from them from main, in one commit. Verdicts stay in the ledger."""
    names = [name for name in (one.table, layout.quarantine_of(one.table)) if name]
    partitions = [StoredPartition(name, key, {}, {}) for name in names for key in one.keys]

    def facts(keys: Sequence[str]) -> CommitFacts:
        changed = list(dict.fromkeys(keys))
        metadata = {
            "table": one.table,
            "keys": ",".join(changed),
            "audit": "passed",
            "author": author,
            "reason": "not retained any more",
        }
        return CommitFacts(f"Retire {counted(len(changed), 'partition')} of {one.table}", metadata)

    land(store, ledger, one.table, partitions, "retire", facts, begin=_nothing, record=_nothing)


def _nothing() -> None:
    """Rows that leave main need no verdict."""


def _read_by_features(tables: DeclaredTables, of: DeclaredTable, newest: str) -> Iterator[str]:
    """Yield the partitions that feature tables read to build those that hold the last day of partition `newest`.

    Of a table with longer partitions also those of the partition before, which may not be built yet.
    """
    _, last = of.cadence.bounds(newest)
    for reader in tables.every():
        for one in tables.inputs_of(reader.table):
            if one.table != of.table or of.cadence.kind == "none":
                continue
            key = reader.cadence.key_of(last)
            yield from one.needed_for(key)
            if reader.cadence.kind != of.cadence.kind:
                yield from (
                    each for before in reader.cadence.previous(key) for each in one.needed_for(before)
                )

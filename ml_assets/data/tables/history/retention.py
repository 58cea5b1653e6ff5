"""Retention: partitions that their table does not retain any more and audit branches that nobody needs leave the lake.

Retired partitions leave main in one commit. Their rows stay in the lake's history until garbage collection. What a
declared table or training still reads is left on main.

An audit branch is needed while the newest verdict on one of its partitions is a rejection that names it, because
`ml-assets accept` merges it. A young branch may belong to a run in progress. Not here: the section `retain`
(`spec.py`), garbage collection (`ml_assets.model.steps.waste`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ml_assets.data.tables import layout
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.publish.prepare import StoredPartition
from ml_assets.data.tables.publish.publish import CommitFacts, land
from ml_assets.data.tables.reader import TableReader
from resources.lake import Commit, VersionedStore
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


_EVERY = 1 << 31
"""Commits of a whole history."""


def needless_audit_branches(store: VersionedStore, ledgers: Sequence[Ledger], before: datetime) -> list[str]:
    """Return the audit branches made before `before` (UTC) that no newest verdict of `ledgers` names, sorted."""
    heads = {name: store.read_commit(head) for name, head in store.branches(layout.AUDIT).items()}
    if not heads:
        return []
    moved_on = dict(_moved_on(store))
    return [
        name
        for name, commit in sorted(heads.items())
        if _is_older(commit, moved_on, before) and not any(_is_named(one, name, commit) for one in ledgers)
    ]


def _is_named(ledger: Ledger, branch: str, commit: Commit) -> bool:
    table, keys = commit.metadata.get("table"), commit.metadata.get("keys", "")
    if not table or commit.metadata.get("audit") != "rejected":
        return False
    newest = ledger.newest_verdicts(table, keys.split(","))
    return any(row.branch == branch and row.blocks for row in newest.values())


def _is_older(commit: Commit, moved_on: dict[str, datetime | None], before: datetime) -> bool:
    """True if the branch with this head was made before `before`.

    A branch without a commit of its own stands on main. It is older than the commit that came next on main.
    """
    made = moved_on.get(commit.id, commit.created_at)
    return made is not None and made < before


def _moved_on(store: VersionedStore) -> Iterator[tuple[str, datetime | None]]:
    """Yield each commit of main, with the time of the next one; None for the head."""
    after: datetime | None = None
    for commit in store.log(MAIN, _EVERY):
        yield commit.id, after
        after = commit.created_at

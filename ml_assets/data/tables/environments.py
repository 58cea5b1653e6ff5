"""Environments for people: a branch of the lake beside main, with a ledger of its own.

An environment begins at main's head, without a copy of data, with main's verdicts. Because a partition's manifest says
what made it, only what the changed code touches is stale there.

A merge makes its partitions those of main, and their verdicts come along. Nothing is built again. A partition is a set
of objects, so the merge changes pointers only. It is refused if main changed one of the same partitions, because nobody
can tell which content is right. Only of rows without a time, which each read replaces, those of main stay. Corrections
(`known_at: ingestion`) count on main from the merge, not from the day of the environment.

The lake merges first, all partitions at once. Then each table's verdicts are recorded in its turn. After a kill in
between, the guard calls the merged partitions unusable until the merge is repeated, which records what is missing. Not
here: the record (`resources.lake.environments`).
"""

import shutil
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ml_assets.data.tables import layout
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.publish.earlier import KeptChange, keep_merged, moment_of_change, put_changes
from ml_assets.data.tables.reader import TableReader
from resources.files import unfinished_folder
from resources.lake import LakeBusy, LakeError, MergeConflict, ObjectStat, RefNotFound, VersionedStore
from resources.lake.environments import (
    Environment,
    branch_of,
    check_environment_name,
    environment_folder,
    own_prefix,
    read_environment,
    write_environment,
)
from resources.ledger import Ledger, NewVerdict, Person, VerdictRow
from resources.platform import Platform
from resources.words import counted, name_some

_TRIES = 5
"""Tries to copy the ledger while main stands still."""
_LANDINGS = 50
"""Newest commits of main whose landings may still have to record their verdicts."""
_NAMED = 4
"""Partitions that an error names. It counts the others."""
_LISTED_TABLES = 200
"""Tables that the metadata of the merge names. lakeFS limits its size."""


class EnvironmentExists(Exception):
    """An environment or its branch has this name."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentChanges:
    """Partitions that an environment and main changed since the environment's base."""

    environment: Environment
    head: str
    """Commit of the environment's branch."""
    main: str
    """Commit of main."""
    changed: Mapping[str, tuple[str, ...]]
    """Table → keys that the environment changed, sorted."""
    conflicts: Mapping[str, tuple[str, ...]]
    """Table → those that main changed, too, to another content. Rows without a time are none: each read replaces them,
    so those of main stay."""

    @property
    def partitions(self) -> int:
        """Number of partitions that the environment changed."""
        return sum(map(len, self.changed.values()))


def create_environment(main: Platform, name: str, author: str) -> Environment:
    """Create an environment at main's head and return its record. No data is copied.

    The ledger is copied, because the guard needs a verdict on each partition. Raises `EnvironmentExists`,
    `EnvironmentNameRefused`, and `LakeBusy` if main does not stand still for the time of the copy.
    """
    settings, branch = main.settings, branch_of(check_environment_name(name))
    folder = environment_folder(settings.home, name)
    if folder.exists() or main.whole_lake.branches(branch).keys() & {branch}:
        raise EnvironmentExists(
            f"an environment is named {name!r} already: take another name, or remove it with ml-assets env drop {name}"
        )
    with unfinished_folder(folder.parent) as unfinished:
        origin = _copy_ledger(main, unfinished / "ledger.db", f"{settings.namespace}/{name}")
        (unfinished / "dagster").mkdir()
        record = Environment(
            name=name, author=author, created_at=datetime.now(UTC), origin=origin, base=origin
        )
        write_environment(unfinished, record)
        main.whole_lake.create_branch(branch, origin)
        unfinished.rename(folder)
    return record


def changes_of(main: Platform, environment: Environment) -> EnvironmentChanges:
    """Return what the environment and main changed since the environment's base. Opens no file."""
    store = main.whole_lake
    head, now = store.resolve(branch_of(environment.name)), store.resolve(MAIN)
    theirs = _after(store, environment.base, head)
    ours = _after(store, environment.base, now)
    both = [
        path
        for path in theirs.keys() & ours.keys()
        if theirs[path] != ours[path] and not layout.is_undated(path)
    ]
    return EnvironmentChanges(
        environment=environment,
        head=head,
        main=now,
        changed=_partitions(theirs),
        conflicts=_partitions(both),
    )


def drop_environment(main: Platform, name: str) -> None:
    """Delete the branches of an environment and its folder. Raises `EnvironmentMissing` if there is neither.

    Trainings, bundles and reports stay among the artifacts until garbage collection.
    """
    store, folder = main.whole_lake, environment_folder(main.settings.home, name)
    branches = [one for one in store.branches(branch_of(name)) if one == branch_of(name)]
    branches += store.branches(own_prefix(name))
    if not branches and not folder.exists():
        read_environment(main.settings.home, name)
    for branch in branches:
        with suppress(RefNotFound):  # another process drops it, too
            store.delete_branch(branch)
    shutil.rmtree(folder, ignore_errors=True)


def inherited_by(platform: Platform) -> TableReader | None:
    """Return the commit whose partitions an environment has from main; None for a platform on main.

    Dagster's history in the environment has no events of them: it shows what was built there.
    """
    one = platform.environment
    return None if one is None else TableReader(platform.lake, one.origin)


def _copy_ledger(main: Platform, path: Path, environment: str) -> str:
    """Copy the ledger to `path`; return the commit of main to which its verdicts belong."""
    store, ledger = main.whole_lake, main.ledger
    for _ in range(_TRIES):
        head = store.resolve(MAIN)
        # A landing merges first and records its verdicts later, in the turn of its table.
        for table in sorted({one.metadata.get("table", "") for one in store.log(head, _LANDINGS)} - {""}):
            with ledger.turn(table):
                pass
        path.unlink(missing_ok=True)
        ledger.copy_to(path, environment)
        if store.resolve(MAIN) == head:
            return head
    raise LakeBusy(
        f"main moved each of {_TRIES} times while its verdicts were copied: create the environment when no run "
        "publishes tables"
    )


def _after(store: VersionedStore, base: str, ref: str) -> dict[str, ObjectStat | None]:
    return {one.path: one.after for one in store.compare(base, ref)}


def _partitions(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for place in filter(None, map(layout.partition_of, paths)):
        found.setdefault(place[0], set()).add(place[1])
    return {table: tuple(sorted(found[table])) for table in sorted(found)}


class EnvironmentConflict(Exception):
    """Main changed partitions that the environment changed, too."""


class NotMergeable(Exception):
    """No passing verdict covers a partition of the environment."""


@dataclass(frozen=True, kw_only=True)
class MergedEnvironment:
    """Outcome of a merge."""

    commit: str
    """Commit of main that holds the environment's partitions."""
    partitions: Mapping[str, tuple[str, ...]]
    """Table → merged keys."""
    overtaken: tuple[str, ...]
    """`table key` of partitions that another run changed on main during the merge: main has its rows."""


_Histories = Mapping[str, Mapping[str, Sequence[VerdictRow]]]
"""Table → key → verdicts in the environment, oldest first."""


def merge_environment(main: Platform, name: str, by: Person) -> MergedEnvironment:
    """Merge the changed partitions of an environment into main, all or none. A repeated call changes nothing more.

    Raises `EnvironmentMissing`, `EnvironmentConflict`, `NotMergeable`, and `IdentityNeeded` if partitions come along
    that a person accepted, the ledger has accounts, and nobody checked who `by` is.
    """
    environment = read_environment(main.settings.home, name)
    changes = changes_of(main, environment)
    inside = main.inside(name).ledger
    histories = {
        table: inside.histories(table, keys)
        for table, keys in changes.changed.items()
        if not table.startswith(f"{layout.QUARANTINE}/")  # the verdicts of its own table cover it
    }
    _require_unmoved(main.ledger, changes, histories)
    _require_covered(TableReader(main.whole_lake, changes.head), changes, histories)
    if any(rows[-1].acceptance for some in histories.values() for rows in some.values()):
        main.ledger.accounts.require_identity(by)
    commit = _merge(main, changes, by)
    overtaken = [
        one for table, some in histories.items() for one in _record(main, table, some, environment, by)
    ]
    folder = environment_folder(main.settings.home, name)
    write_environment(folder, replace(environment, base=changes.head))
    return MergedEnvironment(commit=commit, partitions=changes.changed, overtaken=tuple(overtaken))


def conflict_in_words(name: str, conflicts: Mapping[str, Iterable[str]]) -> str:
    """Return what main and the environment both changed, and the remedy."""
    nodes = [f"{table} {key}" for table, keys in conflicts.items() for key in keys]
    return (
        f"main changed {counted(len(nodes), 'partition')} that environment {name!r} changed, too, since its base: "
        f"{name_some(nodes, _NAMED)}. Nothing was merged. Create a new environment from today's main, launch the "
        f"changed tables there, and merge that one; then: ml-assets env drop {name}"
    )


def _require_unmoved(ledger: Ledger, changes: EnvironmentChanges, histories: _Histories) -> None:
    """Raise `EnvironmentConflict` if main has another content, or a verdict that the environment does not know."""
    conflicts = {table: set(keys) for table, keys in changes.conflicts.items()}
    for table, some in histories.items():
        for key, row in ledger.newest_verdicts(table, changes.changed[table]).items():
            if not _is_known(row, some.get(key, ())):
                conflicts.setdefault(table, set()).add(key)
    if conflicts:
        found = {table: sorted(keys) for table, keys in sorted(conflicts.items())}
        raise EnvironmentConflict(conflict_in_words(changes.environment.name, found))


def _require_covered(head: TableReader, changes: EnvironmentChanges, histories: _Histories) -> None:
    wrong = [
        f"{table} {key} {why}"
        for table, some in histories.items()
        for key in changes.changed[table]
        if (why := _objection(some.get(key, ()), head.digests(table).get(key)))
    ]
    if wrong:
        raise NotMergeable(
            f"environment {changes.environment.name!r} cannot be merged: {name_some(wrong, _NAMED)}. Materialize "
            f"these again there (ML_ASSETS_ENV={changes.environment.name} ml-assets launch …), or accept them there"
        )


def _objection(rows: Sequence[VerdictRow], digest: str | None) -> str:
    if digest is None:
        return ""
    if not rows:
        return "has no verdict"
    if rows[-1].blocks:
        return "is rejected"
    return "" if rows[-1].content_digest == digest else "does not hold the rows of its newest verdict"


def _is_known(row: VerdictRow, rows: Iterable[VerdictRow]) -> bool:
    """True if a verdict of main is one that the environment began with, or one that a merge brought from there."""
    return any(
        (row.content_digest, row.contract_digest, row.run_id)
        == (one.content_digest, one.contract_digest, one.run_id)
        for one in rows
    )


def _merge(main: Platform, changes: EnvironmentChanges, by: Person) -> str:
    name, tables = changes.environment.name, list(changes.changed)
    facts = {"audit": "passed", "environment": name, "author": by.name}
    if len(tables) == 1:
        facts |= {"table": tables[0], "keys": ",".join(changes.changed[tables[0]])}
    else:
        facts["tables"] = ",".join(tables[:_LISTED_TABLES])
    said = f"Merge environment {name}: {counted(changes.partitions, 'partition')} of {counted(len(tables), 'table')}"
    try:
        with _dated_by_main(main, changes, facts) as source:
            return main.whole_lake.merge(source, MAIN, said, facts)
    except MergeConflict:
        newer = changes_of(main, changes.environment)
        raise EnvironmentConflict(conflict_in_words(name, newer.conflicts)) from None


@contextmanager
def _dated_by_main(main: Platform, changes: EnvironmentChanges, facts: Mapping[str, str]) -> Generator[str]:
    """Yield the commit to merge: the environment's, with corrections dated by this merge.

    Holds the turns of the tables that have any, so that no correction of main comes in between with a later moment.
    """
    store, head = main.whole_lake, TableReader(main.whole_lake, changes.head)
    ours = TableReader(store, changes.main)
    tables = [
        table for table in changes.changed if ours.earlier(table) or _has_corrections(head, changes, table)
    ]
    with ExitStack() as stack:
        for table in sorted(tables):
            stack.enter_context(main.ledger.turn(table))
        base, now = TableReader.at(store, MAIN), datetime.now(UTC)
        moments = {table: moment_of_change(base, main.ledger, table, now) for table in tables}
        found = [keep_merged(base, head, table, changes.changed[table], moments[table]) for table in tables]
        found.append(_undated_of_main(main, changes))
        if not any(one.put or one.remove for one in found):
            yield changes.head
            return
        branch = f"{own_prefix(changes.environment.name)}merge-{uuid.uuid4().hex[:12]}"
        store.create_branch(branch, changes.head)
        try:
            put_changes(store, branch, found)
            yield store.commit(branch, "Date corrections by the merge", facts)
        finally:
            with suppress(LakeError):
                store.delete_branch(branch)


def _undated_of_main(main: Platform, changes: EnvironmentChanges) -> KeptChange:
    """Return what gives the environment main's rows without a time, for each table of which both read some."""
    if not any(layout.UNDATED in keys for keys in changes.changed.values()):
        return KeptChange(put={}, remove=[])
    store = main.whole_lake
    ours = {one.path for one in store.compare(changes.environment.base, changes.main)}
    both = {
        place
        for place in map(layout.partition_of, filter(layout.is_undated, ours))
        if place is not None and place[1] in changes.changed.get(place[0], ())
    }
    differing = [
        one for one in store.compare(changes.head, changes.main) if layout.partition_of(one.path) in both
    ]
    there = [one.path for one in differing if one.after is not None]
    return KeptChange(
        put=store.fetch(changes.main, there) if there else {},
        remove=[one.path for one in differing if one.after is None],
    )


def _has_corrections(head: TableReader, changes: EnvironmentChanges, table: str) -> bool:
    """True if the environment replaced rows that main may have to keep, or kept some itself."""
    if head.earlier(table):
        return True
    present = [key for key in changes.changed[table] if key in head.digests(table)]
    readable, _ = head.checked_manifests(table, present)
    return any(one.final_from is not None for one in readable.values())


def _record(
    main: Platform,
    table: str,
    histories: Mapping[str, Sequence[VerdictRow]],
    environment: Environment,
    by: Person,
) -> list[str]:
    """Record the verdicts of a table's merged partitions; return those that another run changed meanwhile."""
    ledger = main.ledger
    inside = main.inside(environment.name).ledger
    levels = {(one.key, one.number): one.level for one in inside.acceptances(table)}
    with ledger.turn(table):
        digests = TableReader.at(main.whole_lake, MAIN).digests(table)
        newest = ledger.newest_verdicts(table, histories)
        ours: dict[str, VerdictRow] = {}
        overtaken: list[str] = []
        for key, rows in histories.items():
            row, known = rows[-1], newest.get(key)
            if key not in digests or (known is not None and _is_known(known, rows[-1:])):
                continue
            if digests[key] != row.content_digest or (known is not None and not _is_known(known, rows)):
                overtaken.append(f"{table} {key}")
            else:
                ours[key] = row
        recorded = ledger.record_verdicts([_for_main(row) for row in ours.values()]) if ours else []
        for row in recorded:
            accepted = ours[row.key].acceptance
            if accepted is not None:
                level = levels.get((row.key, ours[row.key].number), "")
                reason = (
                    f"{accepted.reason} (accepted by {accepted.author} in environment {environment.name})"
                )
                ledger.accept(table, row.key, row.number, by=by, reason=reason, level=level)
    return overtaken


def _for_main(row: VerdictRow) -> NewVerdict:
    return NewVerdict(
        table=row.table,
        key=row.key,
        content_digest=row.content_digest,
        contract_digest=row.contract_digest,
        status="rejected" if row.acceptance else row.status,
        rows=row.rows,
        body_json=row.body_json,
        run_id=row.run_id,
        branch=MAIN,
    )

"""Environments for people: create one without a copy of data, list their changes, drop them.

An environment begins at main's head, with main's verdicts. Because a partition's manifest says what made it, only what
the changed code touches is stale there. Not here: the record (`resources.lake.environments`), the merge
(`merge.py`).
"""

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ml_assets.data.tables import layout
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.reader import TableReader
from resources.files import unfinished_folder
from resources.lake import LakeBusy, ObjectStat, RefNotFound, VersionedStore
from resources.lake.environments import (
    Environment,
    branch_of,
    check_environment_name,
    environment_folder,
    own_prefix,
    read_environment,
    write_environment,
)
from resources.platform import Platform

_TRIES = 5
"""Tries to copy the ledger while main stands still."""
_LANDINGS = 50
"""Newest commits of main whose landings may still have to record their verdicts."""


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

"""Garbage of an installation: what no model, run, kept branch or environment needs. Found first, deleted on request.

Here: the kinds, in the order in which they are deleted. Not here: the contents of the lake
(`resources.lake.garbage`), the rules of tables (`history.retention`).
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ml_assets.data.snapshots.keep import KEEP_RUN
from ml_assets.data.snapshots.split_reader import MANIFEST
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.history.retention import Retired, needless_audit_branches, not_retained, retire
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.reader import TableReader
from resources.artifacts import read_artifact
from resources.files import UNFINISHED
from resources.job.events import JOB, RESULT, SNAPSHOTS, TRAININGS
from resources.job.job import TrainingJob
from resources.lake.environments import environments, own_prefix
from resources.lake.garbage import Garbage, GarbageRules
from resources.launcher.local import folder_lock
from resources.platform import Platform

YOUNG = timedelta(days=1)
"""Age up to which a branch may belong to a run in progress."""
UNUSED = timedelta(days=7)
"""Age from which the cached shards of a snapshot are deleted. They can be built again from the lake."""
_CHECKPOINTS = "checkpoints/"


@dataclass(frozen=True, kw_only=True)
class Waste:
    """Everything that nothing needs."""

    retired: Sequence[Retired]
    """Partitions that their tables do not retain."""
    audits: Sequence[str]
    """Audit branches, with the names that they have in the lake."""
    inputs: Sequence[str]
    """Branches that keep the input of a training which registered no version."""
    snapshots: Mapping[Path, int]
    """Cached shards: folder → bytes."""
    shared: Mapping[str, int]
    """Artifact folder of a snapshot that pods read, and that no unfinished training names → bytes."""
    packages: Mapping[Path, int]
    """Environments of `ml-assets reproduce --environment`: folder → bytes."""
    checkpoints: Mapping[str, Mapping[str, int]]
    """Artifact folder of a finished training → file of a checkpoint → bytes."""
    damaged: Sequence[str]
    """Artifact folders of unfinished trainings whose `job.json` cannot be read. Nobody knows which snapshots they need,
    so all stay."""
    lake: Garbage
    """Contents of the lake, also those that the deletion of the branches frees."""
    rules: GarbageRules


def find_waste(main: Platform, tables: DeclaredTables, windows: Mapping[str, int], now: datetime) -> Waste:
    """Return what nothing needs at the time `now`, UTC. `windows` is table → partitions that trainings read.

    Lists the lake's files and the trainings, so it takes seconds for a large installation. Changes nothing.
    """
    from ml_assets.extras.reproduction.recorded_environment import unused_packages

    since = now - timedelta(days=main.settings.history_days)
    known = environments(main.settings.home)
    audits = list(_audit_branches(main, [one.name for one in known], now - YOUNG))
    inputs = list(_inputs(main, [one.name for one in known], since))
    rules = GarbageRules(
        since=since,
        commits=sorted({commit for one in known for commit in (one.origin, one.base)}),
        without=[*audits, *inputs],
    )
    unfinished = _unfinished(main)
    return Waste(
        retired=not_retained(TableReader.at(main.whole_lake, MAIN), tables, windows),
        audits=audits,
        inputs=inputs,
        snapshots=_snapshots(main, now - UNUSED),
        shared=_shared_snapshots(main, unfinished),
        damaged=unfinished.damaged,
        packages=unused_packages(main, now - UNUSED),
        checkpoints=_checkpoints(main),
        lake=main.lake_garbage.look(rules),
        rules=rules,
    )


def delete_waste(main: Platform, waste: Waste, author: str) -> Garbage:
    """Delete what was found, branches before the contents that they keep; return the deleted contents of the lake.

    Rows of retired partitions stay in the history for the days that the settings name.
    """
    from ml_assets.extras.reproduction.recorded_environment import remove_packages

    store = main.whole_lake
    for one in waste.retired:
        retire(store, main.ledger, one, author)
    for branch in (*waste.audits, *waste.inputs):
        store.release(branch)
    for folder in waste.snapshots:
        shutil.rmtree(folder, ignore_errors=True)
    for name in waste.shared:
        _remove_shared(main, name)
    for folder in waste.packages:
        remove_packages(folder)
    for name, files in waste.checkpoints.items():
        main.artifacts.remove(name, list(files))
    rules = GarbageRules(since=waste.rules.since, commits=waste.rules.commits)
    return main.lake_garbage.collect(rules)


def _audit_branches(main: Platform, names: Sequence[str], before: datetime) -> Iterator[str]:
    """Yield audit branches of main and of each environment.

    An environment began with the verdicts of main, which name main's evidence.
    """
    inside = {name: main.inside(name) for name in names}
    ledgers = [main.ledger, *(one.ledger for one in inside.values())]
    yield from needless_audit_branches(main.whole_lake, ledgers, before)
    for name, one in inside.items():
        for branch in needless_audit_branches(one.lake, [one.ledger], before):
            yield own_prefix(name) + branch


def _inputs(main: Platform, names: Sequence[str], since: datetime) -> Iterator[str]:
    """Yield branches of trainings that ended before `since` without a version. An unfinished training may resume."""
    finished = {fingerprint for (_, fingerprint), files in _trainings(main).items() if RESULT in files}
    places = [("", main), *((own_prefix(name), main.inside(name)) for name in names)]
    for prefix, place in places:
        needed = _read_by_versions(place)
        for branch, head in main.whole_lake.branches(prefix + KEEP_RUN).items():
            short, _, _ = branch.removeprefix(prefix + KEEP_RUN).partition("-")
            is_finished = any(one.startswith(short) for one in finished)
            kept = main.whole_lake.read_commit(head)
            if is_finished and kept.created_at < since and needed.isdisjoint(kept.parents):
                yield branch


def _read_by_versions(place: Platform) -> set[str]:
    """Return the commits at which the newest evaluations of registered versions read their windows.

    A run may have ended between its evaluation and the branch that keeps its input for the version.
    """
    log = place.ledger.models
    found: set[str] = set()
    for model in log.models():
        for digest in {one.bundle_digest for one in log.names(model)}:
            newest = log.newest_evaluation(model, digest)
            if newest is not None:
                found.add(newest.trained_on.commit)
    return found


def _trainings(main: Platform) -> dict[tuple[str, str], dict[str, int]]:
    """Return (model, first digits of the fingerprint) → file → bytes of all trainings among the artifacts."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for path, size in main.artifacts.files(TRAININGS).items():
        model, _, rest = path.partition("/")
        fingerprint, _, file = rest.partition("/")
        found.setdefault((model, fingerprint), {})[file] = size
    return found


def _checkpoints(main: Platform) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (model, fingerprint), files in sorted(_trainings(main).items()):
        name = f"{TRAININGS}/{model}/{fingerprint}"
        saved = {file: size for file, size in files.items() if file.startswith(_CHECKPOINTS)}
        if saved and RESULT in files and not _is_running(main.settings.artifacts_folder / name):
            found[name] = saved
    return found


def _snapshots(main: Platform, before: datetime) -> dict[Path, int]:
    """Return cached snapshots that no run made since `before`, and that no training of this machine uses; none if one
    of them has a damaged `job.json`."""
    folder = main.settings.cache_folder / "snapshots"
    if not folder.is_dir():
        return {}
    jobs = (main.settings.artifacts_folder / TRAININGS).glob(f"*/*/{JOB}")
    try:
        running = {
            Path(TrainingJob.from_json(job.read_text()).snapshot).name
            for job in jobs
            if _is_running(job.parent)
        }
    except ValueError:
        return {}
    return {
        one: sum(file.stat().st_size for file in one.rglob("*") if file.is_file())
        for one in sorted(folder.iterdir())
        if one.is_dir()
        and one.name not in running
        and not one.name.startswith(UNFINISHED)
        and one.stat().st_mtime < before.timestamp()
    }


@dataclass(frozen=True)
class _Unfinished:
    """Trainings without a result: they may run or resume."""

    snapshots: set[str]
    """Digests of the snapshots that they name."""
    damaged: tuple[str, ...]
    """See `Waste.damaged`."""

    def needs(self, snapshot: str) -> bool:
        """True if one of them names the snapshot, or if one of them cannot be read."""
        return bool(self.damaged) or snapshot in self.snapshots


def _unfinished(main: Platform) -> _Unfinished:
    snapshots, damaged = set[str](), list[str]()
    for (model, fingerprint), files in sorted(_trainings(main).items()):
        if JOB in files and RESULT not in files:
            name = f"{TRAININGS}/{model}/{fingerprint}"
            try:
                job = TrainingJob.from_json(read_artifact(main.artifacts, name, JOB).decode())
            except ValueError:
                damaged.append(name)
            else:
                snapshots.add(job.snapshot_digest)
    return _Unfinished(snapshots, tuple(damaged))


def _shared_snapshots(main: Platform, unfinished: _Unfinished) -> dict[str, int]:
    """Return the snapshots among the artifacts that no unfinished training names. A launch shares its own again."""
    sizes: dict[str, int] = {}
    for path, size in main.artifacts.files(SNAPSHOTS).items():
        digest = path.partition("/")[0]
        sizes[digest] = sizes.get(digest, 0) + size
    return {f"{SNAPSHOTS}/{one}": size for one, size in sorted(sizes.items()) if not unfinished.needs(one)}


def _remove_shared(main: Platform, name: str) -> None:
    """Remove a snapshot unless a launch began to need it. Its marker goes first and again last: if a launch shares the
    snapshot meanwhile, it is incomplete afterwards, and the next launch shares it whole."""
    if _unfinished(main).needs(name.removeprefix(f"{SNAPSHOTS}/")):
        return
    main.artifacts.remove(name, [MANIFEST])
    main.artifacts.remove(name)
    main.artifacts.remove(name, [MANIFEST])


def _is_running(training: Path) -> bool:
    """True if a process of this machine works in the folder of a training."""
    if not (training / "lock").exists():
        return False
    with folder_lock(training) as mine:
        return mine is None

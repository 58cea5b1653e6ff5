"""Reproduction of a registered version: train it again in a scratch folder from the recorded commit, and compare.

The job is the recorded one, which the fingerprint in the bundle covers: settings, seed, code and packages. Nothing of
the platform changes: neither lake nor ledger, tracker or artifacts get anything. Not here: the command (`cli`).
"""

import dataclasses
import hashlib
import platform as interpreter
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.data.snapshots.split_rows import rows_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.initial_version import InitialModel
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.standing import keys_of
from ml_assets.model.steps.bundling import bundle_of, versions_behind
from ml_assets.model.steps.champion import MeasuredRows, scored, without_slices
from ml_assets.model.steps.declared_functions import one_process_library
from ml_assets.model.steps.identity import training_code
from ml_assets.model.steps.record import evaluation_of
from ml_assets.model.steps.snapshot import build_training_set
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.train import LaunchRecord, read_launches
from ml_assets.model.steps.values import ValidatedWindow
from ml_assets.model.training.checkpoint.initial import hand_over
from resources.artifacts import ArtifactMissing, FolderArtifacts, read_artifact
from resources.environment import LeftOut, code_state, installed_packages, lock_of
from resources.job.events import JOB
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.local import LocalLauncher
from resources.ledger import EvaluationRow
from resources.platform import Platform

Level = Literal["none", "metrics", "predictions", "weights"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the weakest to the strongest. Each contains those before it."""
PREDICTION_TOLERANCE = 1e-5
"""Largest accepted difference of a prediction on the holdout; absolute up to 1, relative above."""
METRIC_TOLERANCE = 0.005
"""Largest accepted relative difference of a metric of the holdout."""
_OUTSIDE_OF_LOCKS = ("ml-assets", "pip")
"""Distributions that no lock names: this project, whose code is a commit, and the installer of the others."""


class NotReproducible(Exception):
    """A version cannot be trained again here. The message has what differs and the remedy."""


@dataclass(frozen=True, kw_only=True)
class ReproducedPart:
    """One comparison of the recorded version with the new training."""

    what: str
    recorded: str
    again: str
    is_same: bool


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Result of training a version again."""

    level: Level
    """Strongest level that held."""
    expected: Level
    """Level that the determinism of the training promises for this number of workers."""
    workers: int
    compared: tuple[ReproducedPart, ...]

    def reaches(self, level: Level) -> bool:
        """True if `level` held."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


def reproduce(
    spec: PipelineSpec,
    platform: Platform,
    version: RegisteredVersion,
    *,
    workers: int | None = None,
    with_this_code: bool = False,
    on_log: Callable[[str], None],
) -> Reproduction:
    """Train `version` again on this machine and compare snapshot, weights, predictions and metrics.

    `workers` changes the number of workers. Code, lock and packages must be those of the recorded launch;
    `with_this_code` trains with those of this machine. Raises `NotReproducible`, and the errors of a training.
    """
    bundle, row = bundles_of(platform).open(version.bundle_digest), evaluation_of(platform, version)
    if elsewhere := bundle.facts.lineage.elsewhere:
        raise NotReproducible(
            f"{version.model} {version.number} was trained elsewhere ({elsewhere['origin']}): the platform has neither "
            f"its code nor its rows. Register its document {elsewhere['document'][:12]} again to evaluate it anew"
        )
    if not with_this_code and (differs := list(other_environment(platform, bundle, row))):
        raise NotReproducible(
            f"{version.model} {version.number} was trained with another environment: {'; '.join(differs)}. "
            "--code trains with the recorded code, --environment with the recorded packages, --with-this-code with "
            "what is here"
        )
    recorded = _recorded_job(platform, bundle)
    library = one_process_library(recorded.script) if recorded.script and (workers or 1) > 1 else None
    if library is not None:
        raise NotReproducible(
            f"{recorded.script} trains with {library} in one process, so {workers} workers would each train the same "
            "model: leave --workers out"
        )
    reader = TableReader(platform.lake, row.trained_on.commit)
    keys = tuple(keys_of(reader, row.trained_on))
    window = ValidatedWindow(
        commit=row.trained_on.commit, table=row.trained_on.table, keys=keys, stale={}, inputs=(), declared=""
    )
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as scratch:
        initial = _initial(platform, row)
        snapshot = build_training_set(spec, platform, window, initial, into=Path(scratch) / "snapshots")
        if snapshot.digest != recorded.snapshot_digest:
            raise NotReproducible(
                f"the training set of {version.model} {version.number} is another one now: snapshot "
                f"{snapshot.digest[:12]}, recorded {recorded.snapshot_digest[:12]}. Columns, window or code of the "
                "snapshot in defs.yaml differ from those of its training: restore them"
            )
        settings = dataclasses.replace(recorded.settings, workers=workers or recorded.settings.workers)
        job = dataclasses.replace(recorded, snapshot=str(snapshot.folder), settings=settings)
        if with_this_code:
            job = dataclasses.replace(job, **vars(training_code(spec)))
        artifacts = FolderArtifacts(Path(scratch) / "artifacts")
        if initial is not None:
            hand_over(initial.weights, artifacts, "training")
        # A restored training is repeated from its first step: that also shows that its state was of this training.
        whole = dataclasses.replace(job, restored=None)
        result = LocalLauncher().run(whole, artifacts.folder("training"), lambda _: None, on_log)
        compared = tuple(
            _compared(spec, reader, keys, row, snapshot, job, result, bundle, BundleStore(artifacts))
        )
    same = {one.what: one.is_same for one in compared}
    metrics = all(one.is_same for one in compared if one.what.startswith("holdout "))
    level: Level = "none"
    if same["weights"]:
        level = "weights"
    elif same["predictions"]:
        level = "predictions"
    elif metrics:
        level = "metrics"
    return Reproduction(
        level=level,
        expected=_promised(recorded, settings.workers),
        workers=settings.workers,
        compared=compared,
    )


def _promised(recorded: TrainingJob, workers: int) -> Level:
    """Return the level that a training with this number of workers must reach."""
    if workers == recorded.settings.workers:
        return "weights"
    if recorded.script:
        # The batches of a script are its own; most have as many rows for each worker, so one step sees other rows.
        return "none"
    return "weights" if recorded.settings.determinism == "bitwise" else "metrics"


def _compared(
    spec: PipelineSpec,
    reader: TableReader,
    keys: tuple[str, ...],
    row: EvaluationRow,
    snapshot: Snapshot,
    job: TrainingJob,
    result: TrainingResult,
    bundle: Bundle,
    store: BundleStore,
) -> Iterator[ReproducedPart]:

    yield _same("snapshot", bundle.facts.lineage.snapshot_digest, snapshot.digest)
    yield _same("weights", bundle.facts.lineage.weights_sha256, result.weights_sha256)
    holdout = rows_of(reader, row.trained_on.table, keys, snapshot)["holdout"]
    made_by = versions_behind(reader, row.trained_on.table, keys)
    seen = bundle.facts.lineage.seen
    again = bundle_of(spec, job, snapshot, result, holdout, made_by, seen, store)
    yield _same("bundle", bundle.digest, again.digest)
    rows = MeasuredRows.of(spec, snapshot, holdout, bundle.facts.question)
    before, after = scored(bundle, rows), scored(again, rows)
    worst = float(np.max(np.abs(after - before) / np.maximum(1.0, np.abs(before)), initial=0.0))
    yield ReproducedPart(
        what="predictions",
        recorded=f"{hashlib.sha256(before.tobytes()).hexdigest()[:12]}, {holdout.height} rows",
        again="equal" if worst == 0 else f"largest difference {worst:.2g}",
        is_same=worst <= PREDICTION_TOLERANCE,
    )
    change = rows.change(before, after, without_slices(spec.evaluation))
    for one in change.overall:
        near = bool(np.isclose(one.before, one.after, rtol=METRIC_TOLERANCE, atol=0, equal_nan=True))
        yield ReproducedPart(
            what=f"holdout {one.metric.name}",
            recorded=f"{one.before!r}",
            again=f"{one.after!r}",
            is_same=near,
        )


def _same(what: str, recorded: str, again: str) -> ReproducedPart:
    return ReproducedPart(what=what, recorded=recorded, again=again, is_same=recorded == again)


def _recorded_job(platform: Platform, bundle: Bundle) -> TrainingJob:
    """Return the job of a bundle's training. Raises `NotReproducible` if it is gone or was altered."""
    lineage = bundle.facts.lineage
    name = f"training/{lineage.model}/{lineage.fingerprint[:16]}"
    try:
        job = TrainingJob.from_json(read_artifact(platform.artifacts, name, JOB).decode())
    except ArtifactMissing as missing:
        raise NotReproducible(f"the job of the training is gone: {missing}") from missing
    except ValueError as error:
        raise NotReproducible(
            f"{platform.artifacts.address(name)}/{JOB} is damaged ({error}): restore the file from a copy"
        ) from error
    if job.fingerprint != lineage.fingerprint:
        raise NotReproducible(
            f"{platform.artifacts.address(name)}/{JOB} was altered: its fingerprint is {job.fingerprint[:12]}, the "
            f"bundle's is {lineage.fingerprint[:12]}. Restore the file from a copy"
        )
    return job


def other_environment(platform: Platform, bundle: Bundle, row: EvaluationRow) -> Iterator[str]:
    """Yield what differs between the last launch of a training and this machine."""
    then, now = _last_launch(platform, bundle, row), code_state(ROOT, platform.settings.commit)
    if then is None:
        yield "no launch of it is recorded"
        return
    if then.commit != now.commit:
        yield f"its code was commit {then.commit[:12] or 'unknown'}, here is {now.commit[:12] or 'unknown'}"
    difference = hashlib.sha256(now.difference).hexdigest() if now.difference else ""
    was = _changes(then.is_dirty, then.difference, then.left_out)
    here = _changes(now.is_dirty, difference, now.left_out)
    if was != here:
        yield f"its tree had {was} on top of the commit, here are {here}"
    lock = hashlib.sha256(lock_of(ROOT) or b"").hexdigest() if lock_of(ROOT) else ""
    if then.lock != lock:
        yield f"its lock was {then.lock[:12] or 'none'}, here is {lock[:12] or 'none'}"
    if then.python != interpreter.python_version():
        yield f"Python was {then.python}, here is {interpreter.python_version()}"
    packages = installed_packages()
    changed = [
        name
        for name, version in sorted(then.packages.items())
        if name not in _OUTSIDE_OF_LOCKS and packages.get(name) != version
    ]
    if changed:
        name = changed[0]
        more = f" and {len(changed) - 1} more packages" if changed[1:] else ""
        yield f"{name} was {then.packages[name]}, here is {packages.get(name, 'none')}{more}"


def _changes(is_dirty: bool, difference: str, left_out: tuple[LeftOut, ...]) -> str:
    """Return what differs from the commit, in words that are equal for equal code."""
    lost = [f"{one.file} {one.sha256[:12]}".strip() for one in left_out if one.may_be_code]
    known = [*([f"changes {difference[:12]}"] if difference else []), *lost]
    if known:
        return ", ".join(known)
    return "changes that are not recorded" if is_dirty and not left_out else "no changes"


def recorded_launch(platform: Platform, version: RegisteredVersion) -> LaunchRecord:
    """Return the last launch of a version's training. Raises `NotReproducible` if none is recorded."""
    bundle, row = bundles_of(platform).open(version.bundle_digest), evaluation_of(platform, version)
    if (launch := _last_launch(platform, bundle, row)) is None:
        raise NotReproducible(
            f"no launch of {version.model} {version.number} is recorded, so its code and packages are unknown. "
            "--with-this-code trains with what is here"
        )
    return launch


def _last_launch(platform: Platform, bundle: Bundle, row: EvaluationRow) -> LaunchRecord | None:
    lineage = bundle.facts.lineage
    launches = read_launches(platform, lineage.model, lineage.fingerprint, row.launches)
    return launches[-1] if launches else None


def _initial(platform: Platform, row: EvaluationRow) -> InitialModel | None:
    """Return the version whose weights the training began with."""
    if not row.trained_on.begins_with:
        return None
    began = platform.ledger.models.evaluation(row.trained_on.begins_with)
    if began is None:
        raise NotReproducible(
            "the ledger lacks the evaluation of the version that it began with: it is another ledger"
        )
    return InitialModel(
        f"{began.model} {began.name}", bundles_of(platform).open(began.bundle_digest), began.evaluation_digest
    )

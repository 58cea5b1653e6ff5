"""Step 3: launch the job, record the launch, show its metrics while it runs, and wait for its result.

The record of a launch has code, lock, packages, machine and person. It is written once and never changed. A launch of a
finished training trains nothing and writes no record, so a later click adds nothing to the origin of the weights. The
evaluation's row in the ledger has the SHA-256 of each record. Not here: attempts within a launch
(`ml_assets.model.training.attempt`), MLflow's tags, which only show these facts.
"""

import hashlib
import json
import math
import platform as interpreter
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from ml_assets.foundation.checkout import ROOT
from ml_assets.foundation.links import run_url
from ml_assets.model.release.initial_version import InitialModel, newest_fit
from ml_assets.model.release.releases import releases_of
from ml_assets.model.steps.identity import require_as_frozen
from ml_assets.model.steps.live_report import LiveReport, TrainingPage, spent
from ml_assets.model.steps.loss_history import loss_history
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.usage import Usage
from ml_assets.model.steps.values import InitialVersion, TrainedModel, TrainingSet
from ml_assets.model.steps.window import require_nothing_rejected_since
from ml_assets.model.training.checkpoint.initial import hand_over
from resources.artifacts import ArtifactMissing, read_artifact
from resources.environment import LeftOut, code_state, environment_facts, installed_packages, lock_of, machine
from resources.job.events import EVENTS, RESULT, TrainingEvent, read_events, training_folder_name
from resources.job.job import TrainingJob
from resources.job.training_settings import OF_SCRIPTS
from resources.launcher.protocol import nobody_comes_back
from resources.launcher.resource_profile import ResourceProfile
from resources.ledger import CheckedBy
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerError
from resources.tracking.tracker import RunFacts, TrackedRun


@dataclass(frozen=True, kw_only=True)
class PartOfStudy:
    """Place of a training among the trials of a study, for the tracker."""

    run: str
    """Id of the study's run in MLflow; empty if MLflow was away when the study began."""
    name: str
    """Name of the trial's run for people."""
    after_epoch: Callable[[int, float, int], None]
    """Called with the number of an epoch, the lowest validation loss so far, and the step. If it raises, the workers
    save a checkpoint at the same step and end, and the exception is raised again."""
    on_event: Callable[[TrainingEvent], None]
    """Called with each event of the workers, before `after_epoch`."""

    def hear(self, event: TrainingEvent) -> None:
        """Take an event of the workers. Epochs of a script may lack a loss; these are not compared."""
        self.on_event(event)
        epoch, loss = (event.values.get(name) for name in ("epoch", "best_validation_loss"))
        if event.kind == "epoch" and epoch is not None and loss is not None and math.isfinite(loss):
            self.after_epoch(int(epoch), float(loss), event.step)


def train_model(
    spec: PipelineSpec,
    platform: Platform,
    training_set: TrainingSet,
    page: TrainingPage,
    *,
    run_id: str,
    resources: Mapping[str, Any],
    study: PartOfStudy | None = None,
    comes_back: Callable[[BaseException], bool] = nobody_comes_back,
) -> TrainedModel:
    """Run the job's workers until they are done; reuse the result of a job that is already finished.

    `resources` changes the pipeline's resources for this launch. `run_id` names the run that waits, `comes_back` is for
    the launcher. A trial names its `study`. Raises `InputsRefused` if a partition of the window was rejected since,
    `DeclarationChanged`, `BudgetSpent`, and the launcher's errors.
    """
    job = training_set.job
    require_as_frozen(spec, training_set)
    require_nothing_rejected_since(platform, training_set)
    name = training_folder_name(job)
    folder = platform.artifacts.folder(name)
    if platform.artifacts.exists(name, EVENTS):  # from a run on another machine
        platform.artifacts.pull(name, [EVENTS])
    if training_set.initial is not None:
        _hand_over(training_set.initial, platform, name)
    if job.restored is not None:
        from ml_assets.model.training.checkpoint.restored import hand_over_state  # loads torch

        hand_over_state(platform.artifacts, job, job.restored)
    profile = spec.resources.of(job.partition, resources)
    if job.settings.checkpoint_every_minutes == "auto" and not job.script:
        job = replace(job, loss_history=loss_history(platform, job, page))
    if platform.settings.prices is not None and not platform.artifacts.exists(name, RESULT):
        from ml_assets.extras.costs.budget import require_budget

        if warning := require_budget(platform, job.model):
            page.warning(warning)
    record_launch(platform, job, run_id)
    facts = tracking_facts(spec, platform, training_set, profile, study)
    with _telling_holes(page, platform.tracker.start(facts)) as tracked:
        report = LiveReport(page, tracked)
        before = read_events(folder)
        usage = Usage(
            artifacts=platform.artifacts,
            job=job,
            environment=platform.settings.environment,
            env=platform.settings.env or "",
            run_id=run_id,
            author=platform.acting.name,
        )
        report.catch_up([*before, *usage.catch_up(before)])
        price = platform.settings.gpu_hour_price

        def hear(event: TrainingEvent) -> None:
            usage.hear(event)
            report.event(event)
            if study is not None:
                study.hear(event)

        try:
            if study is not None:  # its process may have died before it compared them
                for event in before:
                    study.hear(event)
            with usage.recording(comes_back):
                result = platform.launcher.run(job, folder, hear, page.info, profile, run_id, comes_back)
        except BaseException:  # also after a cancellation: its hours were paid
            report.tell_spent(price)
            with suppress(TrackerError):  # the next start of this training records it again
                platform.tracker.tag_once(tracked.run_id, report.attempts.facts())
            raise
        # If a later run logs it again, it has the same time and stays a single point.
        at = report.finished_at
        taken = spent(result, report.attempts, report.devices, price)
        tracked.log(taken, result.steps, at, once_a_step=at is None)
    platform.tracker.tag_once(tracked.run_id, {**report.devices, **report.attempts.facts()})
    return TrainedModel(
        result=result,
        folder=str(folder),
        mlflow_run=tracked.run_id,
        is_reused=report.events == 0,
        launches=launches_of(platform, job),
    )


@contextmanager
def _telling_holes(page: TrainingPage, run: TrackedRun) -> Generator[TrackedRun]:
    """Track within the block; afterwards warn about metrics that could neither be delivered nor stored."""
    try:
        with run:
            yield run
    finally:
        if run.missing:
            page.warning(
                f"MLflow lacks {run.missing}: it was away, and the disk under the home is full. Make room and launch "
                "the training again, which sends the points of its events"
            )


def _hand_over(initial: InitialVersion, platform: Platform, name: str) -> None:
    """Put the weights of the version `initial` where the workers of the training in folder `name` begin with them.

    Checks the version again. It may have been rejected since the snapshot step chose it: this step may run days later.
    """

    releases = releases_of(platform)
    version = InitialModel(initial.version, releases.store.open(initial.bundle))
    newest_fit(version, releases)
    hand_over(version.weights, platform.artifacts, name)


def tracking_facts(
    spec: PipelineSpec,
    platform: Platform,
    training_set: TrainingSet,
    profile: ResourceProfile,
    study: PartOfStudy | None = None,
) -> RunFacts:
    """Return the facts that the tracker records before training starts."""
    job, initial, choice = training_set.job, training_set.initial, training_set.choice
    settings = job.settings
    counting = OF_SCRIPTS if job.script else settings.__dataclass_fields__
    params = {f"training.{name}": getattr(settings, name) for name in counting}
    params |= {f"model.{name}": value for name, value in job.hyperparameters.items()}
    params |= {"seed": job.seed}
    params |= {"script": job.script} if job.script else {"model_function": job.model_function}
    params |= {"model.arguments": " ".join(map(str, job.arguments))} if job.arguments else {}
    params |= {"decode": job.decode} if job.decode else {}
    return RunFacts(
        experiment=job.model,
        fingerprint=job.fingerprint,
        name=job.partition if study is None else study.name,
        parent="" if study is None else study.run,
        author=platform.acting.name,
        params=params,
        note=spec.description,
        tags={
            "partition": job.partition,
            "lake_commit": training_set.commit,
            "snapshot_digest": job.snapshot_digest,
            "code_version": job.code_version,
            "loop_version": job.loop_version,
            "dagster_run": training_set.run_id,
            "dagster_url": run_url(platform.settings.ui_url, training_set.run_id),
            "schema_hash": job.schema_hash,
            "world_size": str(settings.workers),
            "artifacts": platform.artifacts.address(training_folder_name(job)),
            **({} if initial is None else {"init_from": initial.version}),
            **({} if job.restored is None else {"restored_from": job.restored.in_words}),
            **({} if choice is None else {"study": choice.source}),
            **platform.launcher.facts(profile),
            **environment_facts(ROOT, platform.settings.commit),
        },
        dataset_name=training_set.table,
        dataset_digest=job.snapshot_digest,
    )


LAUNCHES = "launches"
"""Folder of all records among the artifacts, with a folder for each training."""
SOURCES = "sources"
"""Folder of locks and differences of code among the artifacts, each under its SHA-256."""
LOCK, DIFFERENCE = "requirements.txt", "code.diff"


class LaunchUnknown(Exception):
    """A record of a launch, or a file that it names, is gone or was altered."""


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """One launch of a training that was not finished."""

    at: str
    """Time, ISO 8601, UTC."""
    run_id: str
    """Dagster run."""
    author: str
    checked_by: CheckedBy
    """Proof of the author's identity."""
    commit: str
    """Git commit of the code; empty if nothing names one."""
    is_dirty: bool
    """True if files differed from the commit."""
    difference: str
    """SHA-256 of what differed, as `git apply` reads it; empty for a clean tree, or without a work tree."""
    left_out: tuple[LeftOut, ...]
    """Changed or new files that are not in the difference."""
    lock: str
    """SHA-256 of the locked requirements; empty without a lock."""
    packages: dict[str, str]
    """Name → version of each installed distribution."""
    python: str
    machine: str
    workers: int

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the content of a record."""
        facts: dict[str, Any] = json.loads(text)
        facts["left_out"] = tuple(LeftOut(**one) for one in facts["left_out"])
        return cls(**facts)


def record_launch(platform: Platform, job: TrainingJob, run_id: str) -> None:
    """Write the record of a launch that begins now, unless the training is finished."""
    if platform.artifacts.exists(training_folder_name(job), RESULT):
        return
    code, lock = code_state(ROOT, platform.settings.commit), lock_of(ROOT)
    now = datetime.now(UTC)
    launch = LaunchRecord(
        at=now.isoformat(),
        run_id=run_id,
        author=platform.acting.name,
        checked_by=platform.acting.checked_by,
        commit=code.commit,
        is_dirty=code.is_dirty,
        difference=_keep(platform, DIFFERENCE, code.difference),
        left_out=code.left_out,
        lock=_keep(platform, LOCK, lock or b""),
        packages=installed_packages(),
        python=interpreter.python_version(),
        machine=machine(),
        workers=job.settings.workers,
    )
    file = f"{now:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:4]}.json"
    _write_once(
        platform,
        _folder(job.model, job.fingerprint),
        file,
        json.dumps(asdict(launch), sort_keys=True, indent=1).encode(),
    )


def launches_of(platform: Platform, job: TrainingJob) -> tuple[str, ...]:
    """Return the SHA-256 of each record of a training's launches, oldest first."""
    name = _folder(job.model, job.fingerprint)
    return tuple(
        hashlib.sha256(read_artifact(platform.artifacts, name, file)).hexdigest()
        for file in sorted(platform.artifacts.files(name))
    )


def read_launches(
    platform: Platform, model: str, fingerprint: str, digests: Iterable[str]
) -> list[LaunchRecord]:
    """Return the launches whose records have `digests`. Raises `LaunchUnknown` if one is gone or was altered."""
    name = _folder(model, fingerprint)
    contents = [
        read_artifact(platform.artifacts, name, file) for file in sorted(platform.artifacts.files(name))
    ]
    found = {hashlib.sha256(content).hexdigest(): content for content in contents}
    wanted = list(digests)
    if lost := [digest[:12] for digest in wanted if digest not in found]:
        raise LaunchUnknown(
            f"the record {', '.join(lost)} of a launch of {model} {fingerprint[:12]} is gone from "
            f"{platform.artifacts.address(name)}, or was altered: restore the folder from a copy"
        )
    return [LaunchRecord.from_json(found[digest].decode()) for digest in wanted]


def source(platform: Platform, digest: str, file: str) -> bytes:
    """Return the locked requirements or the difference with this SHA-256. Raises `LaunchUnknown`."""
    try:
        content = read_artifact(platform.artifacts, f"{SOURCES}/{digest}", file)
    except ArtifactMissing as missing:
        raise LaunchUnknown(f"{missing}: restore it from a copy") from missing
    if hashlib.sha256(content).hexdigest() != digest:
        raise LaunchUnknown(
            f"{platform.artifacts.address(f'{SOURCES}/{digest}')}/{file} was altered: restore it from a copy"
        )
    return content


def _folder(model: str, fingerprint: str) -> str:
    return f"{LAUNCHES}/{model}/{fingerprint[:16]}"


def _keep(platform: Platform, file: str, content: bytes) -> str:
    """Store `content` under its SHA-256, and return that; empty for no content."""
    if not content:
        return ""
    digest = hashlib.sha256(content).hexdigest()
    if not platform.artifacts.exists(f"{SOURCES}/{digest}", file):
        _write_once(platform, f"{SOURCES}/{digest}", file, content)
    return digest


def _write_once(platform: Platform, name: str, file: str, content: bytes) -> None:
    with platform.artifacts.create(name, file) as stream:
        stream.write(content)

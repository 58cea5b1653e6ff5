"""Step 3: launch the job, show its metrics while it runs, and wait for its result."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import dagster as dg

from ml_assets.checkout import ROOT
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import counted, readable, run_url, tracked_facts
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.steps.inputs import require_nothing_rejected_since
from ml_assets.components.steps.snapshot import require_as_frozen, settings_digest
from ml_assets.components.steps.spending import Attempts, spent
from ml_assets.components.steps.stragglers import Stragglers
from resources.environment import environment_facts
from resources.job.events import EVENTS, TrainingEvent, read_events, training_folder_name
from resources.job.job import TrainingJob, TrainingResult
from resources.job.recoveries import Recovery, recoveries_of
from resources.job.training_settings import OF_SCRIPTS
from resources.launcher.devices import idle_in_words
from resources.launcher.profile import ResourceProfile, changes_of
from resources.mlflow_client import TrackerError
from resources.platform import Platform
from resources.tracker import RunFacts, TrackedRun

RESOURCES = "ml_assets/resources"
"""Tag on a run: changes of the pipeline's resources for this launch, `memory=8Gi,nodes=2` or a JSON object."""
SETTINGS_DIGEST = "settings_digest"
"""Metadata of a checkpoint: all it follows from but the data. `ml-assets plan` compares it with the declaration."""
OBSERVE_EVERY_SECONDS = 1.0
"""Each observation is a row in Dagster's event log; the tracker gets every point."""
_MEASURING = {
    "metrics": None,
    "epoch": None,
    "checkpoint": {"checkpoint_duration_ms": "checkpoint_duration_ms", "blocked_ms": "checkpoint_blocked_ms"},
    "recovered": {"seconds": "recovery_seconds", "steps_lost": "recovery_steps_lost"},
    "system": None,
}
"""Kinds of events whose numbers are metrics: which of them, under which name; None for all."""
_OF_A_STEP = ("metrics", "epoch")
"""Kinds whose numbers belong to their step: trained again, it tells the same. The others are readings of their own."""
_DEVICES = ("device", "gpu", "gpus", "gpu_driver", "gpus_idle")
"""Values of a `started` event about the machine."""


def train_op(spec: TrainingPipelineSpec, checkpoint: dg.AssetKey) -> dg.OpDefinition:
    """Runs the workers; the loss appears on the run page and in the tracker while they run."""

    @dg.op(
        name=f"{spec.name}__train",
        out=dg.Out(),
        description="Train by torchrun; live metrics on this page and in MLflow.",
        retry_policy=RETRY_TRANSIENT,
    )
    def train(
        context: dg.OpExecutionContext, platform: dg.ResourceParam[Platform], snapshot: dict[str, Any]
    ) -> dg.Output[dict[str, Any]]:
        with final_unless_transient():
            job = TrainingJob.from_json(snapshot["job"])
            require_as_frozen(spec, job.partition, snapshot)
            require_nothing_rejected_since(spec, platform, job.partition, snapshot)
            name = training_folder_name(job)
            folder = platform.artifacts.folder(name)
            if platform.artifacts.exists(name, EVENTS):  # told to a run on another machine
                platform.artifacts.pull(name, [EVENTS])
            if (initial := snapshot.get("initial")) is not None:
                _hand_over(initial, platform, name)
            profile = spec.resources.of(job.partition, changes_of(context.get_tag(RESOURCES) or ""))
            with platform.tracker.start(tracking_facts(spec, platform, job, snapshot, profile)) as tracked:
                report = LiveReport(context, checkpoint, tracked, job)
                report.catch_up(read_events(folder))
                price = platform.settings.gpu_hour_price
                try:
                    result = platform.launcher.run(
                        job, folder, report.event, context.log.info, profile, context.run_id
                    )
                except BaseException:  # a cancelled one, too: its hours were paid
                    report.tell_spent(price)
                    with suppress(TrackerError):  # the next start of this training tells it again
                        platform.tracker.tag_once(tracked.run_id, report.attempts.facts())
                    raise
                # Told again by a later run, it has the same time, and is one point.
                at = report.finished_at
                tracked.log(spent(result, report.devices, price), result.steps, at, once_a_step=at is None)
            platform.tracker.tag_once(tracked.run_id, {**report.devices, **report.attempts.facts()})
            facts = {"fingerprint": job.fingerprint, "folder": str(folder), "mlflow_run": tracked.run_id}
            return dg.Output(
                facts,
                metadata={
                    **_shown(result),
                    **({"idle GPUs": report.idle} if report.idle else {}),
                    **_survived(read_events(folder)),
                    "reused": report.events == 0,
                    SETTINGS_DIGEST: settings_digest(spec),
                    **tracked_facts(platform.tracker.uri, tracked.run_id),
                    "folder": dg.MetadataValue.path(str(folder)),
                },
                data_version=dg.DataVersion(result.weights_sha256),
            )

    return train


def _hand_over(initial: Mapping[str, str], platform: Platform, name: str) -> None:
    """Put the weights of the version `initial` where the workers of the training in folder `name` begin with them.

    It may have been rejected since the snapshot step chose it: this step may run again days later.
    """
    from ml_assets.release.initial import InitialModel, newest_fit
    from ml_assets.release.parts import bundles_of, releases_of
    from ml_assets.training.checkpoint.initial import hand_over

    version = InitialModel(initial["version"], bundles_of(platform).open(initial["bundle"]))
    newest_fit(version, releases_of(platform))
    hand_over(version.weights, platform.artifacts, name)


class LiveReport:
    """Live report of a training: at most one observation a second, every point to the tracker."""

    def __init__(
        self, context: dg.OpExecutionContext, checkpoint: dg.AssetKey, tracked: TrackedRun, job: TrainingJob
    ) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._tracked = tracked
        self._torch = job.packages.get("torch")
        self.attempts = Attempts()
        self._observed_at = 0.0
        self._stragglers = Stragglers()
        self.events = 0
        """Number of events; 0 where the job was found finished."""
        self.devices: dict[str, str] = {}
        """Devices of the first rank's machine, as it reported when it started."""
        self.idle = ""
        """Advice about GPUs that the training leaves idle; empty where there are none."""
        self.finished_at: float | None = None
        """Time at which the workers were done, seconds since the epoch: the same for each run that follows the job."""

    def catch_up(self, events: Iterable[TrainingEvent]) -> None:
        """Give the tracker what earlier runs of this job were told; it keeps each point once. A run that was
        killed may not have come to pass on the last ones."""
        for event in events:
            self._note(event)
            self._track(event)

    def tell_spent(self, gpu_hour_price: float | None) -> None:
        """Record what a training took that did not finish."""
        taken = self.attempts.spent(gpu_hour_price)
        if not taken:
            return
        self._tracked.log(taken, self.attempts.step, self.attempts.last_sign, once_a_step=False)
        cost = f", cost {taken['cost']:.2f}" if "cost" in taken else ""
        self._context.log.info(
            f"not finished: {taken['worker_hours']:.3f} worker hours in {counted(int(taken['attempts']), 'attempt')}"
            f"{cost}"
        )

    def event(self, event: TrainingEvent) -> None:
        """Called by the launcher for each event of the workers."""
        self.events += 1
        numbers = _numbers(event)
        self._note(event)
        self._track(event)
        if event.kind in ("resumed", "checkpoint", "started"):
            self._context.log.info(f"{event.kind} at step {event.step}")
        if event.kind == "recovered":
            self._context.log.warning(Recovery.of(event).in_words())
        if (straggler := self._stragglers.hear(event)) is not None:
            self._context.log.warning(straggler)
        is_due = event.kind == "metrics" and time.monotonic() - self._observed_at >= OBSERVE_EVERY_SECONDS
        if is_due or event.kind == "epoch":
            self._observed_at = time.monotonic()
            self._context.log_event(
                dg.AssetObservation(
                    self._checkpoint,
                    partition=self._context.partition_key,
                    metadata={"step": event.step, **numbers},
                )
            )

    def _track(self, event: TrainingEvent) -> None:
        if event.kind in _MEASURING:
            once = event.kind in _OF_A_STEP
            self._tracked.log(_numbers(event), event.step, event.time, once_a_step=once)

    def _note(self, event: TrainingEvent) -> None:
        self.attempts.hear(event)
        if event.kind == "started":
            self._warn_of_another_torch(str(event.values.get("torch", "")))
            self._warn_of_idle_gpus(event)
            self.devices = {name: str(event.values[name]) for name in _DEVICES if name in event.values}
        if event.kind == "finished":
            self.finished_at = event.time

    def _warn_of_idle_gpus(self, event: TrainingEvent) -> None:
        idle, ranks = (int(event.values.get(name, 0)) for name in ("gpus_idle", "world_size"))
        self.idle = idle_in_words(idle, ranks)
        if self.idle:
            self._context.log.warning(self.idle)

    def _warn_of_another_torch(self, version: str) -> None:
        theirs = version.partition("+")[0]
        if theirs and self._torch and theirs != self._torch:
            self._context.log.warning(
                f"the workers have torch {theirs}, and this training is known as one of torch {self._torch}, which is "
                "installed here: build the workers' image from the lock of this platform"
            )


def _numbers(event: TrainingEvent) -> dict[str, float]:
    numbers = {name: float(v) for name, v in event.values.items() if isinstance(v, int | float)}
    names = _MEASURING.get(event.kind)
    return numbers if names is None else {names[name]: v for name, v in numbers.items() if name in names}


def tracking_facts(
    spec: TrainingPipelineSpec,
    platform: Platform,
    job: TrainingJob,
    snapshot: Mapping[str, Any],
    profile: ResourceProfile,
) -> RunFacts:
    """Return the facts that the tracker records before training starts."""
    settings = job.settings
    counting = OF_SCRIPTS if job.entry else settings.__dataclass_fields__
    params = {f"training.{name}": getattr(settings, name) for name in counting}
    params |= {f"model.{name}": value for name, value in job.hyperparameters.items()}
    params |= {"seed": job.seed}
    params |= {"entry": job.entry} if job.entry else {"model_function": job.model_function}
    params |= {"model.arguments": " ".join(map(str, job.arguments))} if job.arguments else {}
    params |= {"decode": job.decode} if job.decode else {}
    return RunFacts(
        experiment=job.model,
        fingerprint=job.fingerprint,
        name=job.partition,
        author=platform.settings.author,
        params=params,
        note=spec.description,
        tags={
            "partition": job.partition,
            "lake_commit": snapshot["commit"],
            "snapshot_digest": job.snapshot_digest,
            "code_version": job.code_version,
            "loop_version": job.loop_version,
            "dagster_run": snapshot["run_id"],
            "dagster_url": run_url(platform.settings.ui_url, snapshot["run_id"]),
            "schema_hash": job.schema_hash,
            "world_size": str(settings.workers),
            "artifacts": platform.artifacts.address(training_folder_name(job)),
            **({"init_from": initial["version"]} if (initial := snapshot.get("initial")) else {}),
            **platform.launcher.facts(profile),
            **environment_facts(ROOT, platform.settings.commit),
        },
        dataset_name=spec.features.table,
        dataset_digest=job.snapshot_digest,
    )


def _survived(events: Iterable[TrainingEvent]) -> dict[str, Any]:
    """Return metadata of the training's interruptions and their cost; empty where there was none."""
    lines = [f"* {recovery.in_words()}" for recovery in recoveries_of(events)]
    return {"recoveries": dg.MetadataValue.md("\n".join(lines))} if lines else {}


def _shown(result: TrainingResult) -> dict[str, Any]:
    return {
        "best validation loss": readable(result.best_validation_loss),
        "best step": result.best_step,
        "steps": result.steps,
        **({"epochs": result.epochs} if result.epochs else {}),
        "world size": result.world_size,
        **({"rows per second": readable(result.rows_per_second)} if result.epochs else {}),
        "seconds": readable(result.seconds),
        "attempts": result.attempts,
        **(
            {"resumed from steps": dg.MetadataValue.json(resumed)}
            if (resumed := [*result.resumed_from_steps])
            else {}
        ),
        "weights": result.weights_sha256,
    }

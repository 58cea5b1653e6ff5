"""Step 3: launch the job, show its metrics while it runs, and wait for its result."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from ml_assets.checkout import ROOT
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import readable, run_url, tracked_facts
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.steps.stragglers import Stragglers
from resources.environment import environment_facts
from resources.launcher.job import TrainingJob, TrainingResult
from resources.launcher.profile import ResourceProfile, changes_of
from resources.launcher.protocol import EVENTS, TrainingEvent, read_events, training_folder_name
from resources.launcher.recoveries import Recovery, recoveries_of
from resources.launcher.training_settings import OF_SCRIPTS
from resources.platform import Platform
from resources.tracker import RunFacts, TrackedRun

RESOURCES = "ml_assets/resources"
"""Tag on a run: changes of the pipeline's resources for this launch, `memory=8Gi,nodes=2` or a JSON object."""
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
_DEVICES = ("device", "gpu", "gpus", "gpu_driver")
"""What a `started` event tells of the machine."""


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
            name = training_folder_name(job)
            folder = platform.artifacts.folder(name)
            if platform.artifacts.exists(name, EVENTS):  # told to a run on another machine
                platform.artifacts.pull(name, [EVENTS])
            if (initial := snapshot.get("initial")) is not None:
                _hand_over(initial["bundle"], platform, name)
            profile = spec.resources.of(job.partition, changes_of(context.get_tag(RESOURCES) or ""))
            with platform.tracker.start(tracking_facts(spec, platform, job, snapshot, profile)) as tracked:
                report = LiveReport(context, checkpoint, tracked)
                report.catch_up(read_events(folder))
                result = platform.launcher.run(job, folder, report.event, context.log.info, profile)
                taken = spent(result, report.devices, platform.settings.gpu_hour_price)
                tracked.log(taken, result.steps, report.finished_at)
                platform.tracker.tag(tracked.run_id, report.devices)
            facts = {"fingerprint": job.fingerprint, "folder": str(folder), "mlflow_run": tracked.run_id}
            return dg.Output(
                facts,
                metadata={
                    **_shown(result),
                    **_survived(read_events(folder)),
                    "reused": report.events == 0,
                    **tracked_facts(platform.tracker.uri, tracked.run_id),
                    "folder": dg.MetadataValue.path(str(folder)),
                },
                data_version=dg.DataVersion(result.weights_sha256),
            )

    return train


def _hand_over(bundle: str, platform: Platform, name: str) -> None:
    """Put the weights of `bundle` where the workers of the training in folder `name` begin with them."""
    from ml_assets.release.parts import bundles_of
    from ml_assets.release.store import WEIGHTS
    from ml_assets.training.initial import hand_over

    hand_over(bundles_of(platform).open(bundle).folder / WEIGHTS, platform.artifacts, name)


class LiveReport:
    """What one training shows while it runs: an observation a second at most, every point to the tracker."""

    def __init__(self, context: dg.OpExecutionContext, checkpoint: dg.AssetKey, tracked: TrackedRun) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._tracked = tracked
        self._observed_at = 0.0
        self._stragglers = Stragglers()
        self.events = 0
        """How many there were; none where the job was found finished."""
        self.devices: dict[str, str] = {}
        """What the first rank's machine trains on, as it told when it started."""
        self.finished_at: float | None = None
        """When the workers were done, seconds since the epoch: the same for each run that follows the job."""

    def catch_up(self, events: Iterable[TrainingEvent]) -> None:
        """Give the tracker what earlier runs of this job were told; it keeps each point once. A run that was
        killed may not have come to pass on the last ones."""
        for event in events:
            self._note(event)
            if event.kind in _MEASURING:
                self._tracked.log(_numbers(event), event.step, event.time)

    def event(self, event: TrainingEvent) -> None:
        """Called by the launcher for each event of the workers."""
        self.events += 1
        numbers = _numbers(event)
        self._note(event)
        if event.kind in _MEASURING:
            self._tracked.log(numbers, event.step, event.time)
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

    def _note(self, event: TrainingEvent) -> None:
        if event.kind == "started":
            self.devices = {name: str(event.values[name]) for name in _DEVICES if name in event.values}
        if event.kind == "finished":
            self.finished_at = event.time


def spent(
    result: TrainingResult, devices: Mapping[str, str], gpu_hour_price: float | None
) -> dict[str, float]:
    """What the whole training took, over all its attempts, as metrics of its run.

    `worker_hours` counts each attempt with the workers it had, and what was done again as often as it was done.
    `gpu_hours` needs to know the workers' kind of device, `cost` also the price of an hour of one GPU.
    """
    of_one_size = result.seconds * result.world_size  # all that an older version knew
    hours = (of_one_size if result.worker_seconds is None else result.worker_seconds) / 3600
    taken = {
        "training_seconds": result.seconds,
        "attempts": float(result.attempts),
        "worker_hours": hours,
        **_speed(result),
    }
    if "device" in devices:
        taken["gpu_hours"] = hours if devices["device"] == "cuda" else 0.0
        if gpu_hour_price is not None:
            taken["cost"] = taken["gpu_hours"] * gpu_hour_price
    return taken


def _speed(result: TrainingResult) -> dict[str, float]:
    """Nothing where a script did not say how many rows it read."""
    return {"training_throughput_samples_per_sec": result.rows_per_second} if result.epochs else {}


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
    """What the tracker is told before training starts."""
    settings = job.settings
    counting = OF_SCRIPTS if job.entry else settings.__dataclass_fields__
    params = {f"training.{name}": getattr(settings, name) for name in counting}
    params |= {f"model.{name}": value for name, value in job.hyperparameters.items()}
    params |= {"seed": job.seed}
    params |= {"entry": job.entry} if job.entry else {"model_function": job.model_function}
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
            "schema_hash": snapshot["schema_hash"],
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
    """What interrupted the training, and what each interruption cost; nothing where there was none."""
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

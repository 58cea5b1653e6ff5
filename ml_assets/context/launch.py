"""Launch of a model or a table: the names and partitions that a person gives, and a Dagster run in this process.

Dagster counts a run as in progress until its process reports the end. A killed command would block a place in the run
queue, and automation would wait forever. So a command locks a file during its run, and the operating system releases
the lock when the process ends (`end_abandoned`). Runs of the UI have no such file: its server watches them.
"""

import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from ml_assets.components.assets.hyperparameters import HYPERPARAMETERS
from ml_assets.components.assets.predictions import LIVE
from ml_assets.components.behind import TABLES
from ml_assets.components.failures import Stop, Terminated, stopping_by
from ml_assets.components.feature_table import is_online
from ml_assets.components.metadata import PARTITION, RANGE_END, RANGE_START, RESOURCES, is_table
from ml_assets.components.sensors.reconcile import reconcile, tables_of
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.training_pipeline import STAGES, stage_key
from ml_assets.context.errors import LaunchRefused, NotFound, RunFailed
from ml_assets.context.interrupts import not_for_children
from ml_assets.context.project import Project
from ml_assets.dagster_host.run_watcher import watched
from ml_assets.data.tables.cadence import begin_of_key
from ml_assets.data.tables.environments import inherited_by
from ml_assets.model.steps.spec import PREDICTIONS
from resources.acting import launched_in_terminal
from resources.files import create_locked, take_lock
from resources.launcher.resource_profile import changes_of
from resources.threads import working_beside
from resources.words import did_you_mean

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
POLL_SECONDS = 0.3
_WRAPPERS = ("RetryRequestedFromPolicy", "DagsterExecutionStepExecutionError")
"""Dagster's errors around a step's own error."""
_STOPPED = "Stopped by Ctrl-C."


@dataclass(frozen=True)
class Finished:
    """Result of a run."""

    run_id: str
    seconds: float
    step_seconds: Mapping[str, float]
    """Step → seconds, in the order in which steps ended."""
    materialized: int
    """Partitions and assets materialized."""
    metadata: Mapping[dg.AssetKey, Mapping[str, Any]]
    """Newest metadata of each materialized asset, as plain values."""
    observed: Mapping[dg.AssetKey, str]
    """Asset → description of its observation, such as the reason why a model was not registered."""


@dataclass(frozen=True, kw_only=True)
class Launchable:
    """Launch that the declarations allow."""

    keys: Sequence[dg.AssetKey]
    """Assets of one run."""
    first: str | None
    """Its partition, or the first of a range; None for a table without partitions."""
    last: str | None
    """Last partition of a range."""
    tags: Mapping[str, str]
    """Tags beside those of its partitions."""
    own_tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tags that only the platform sets, and no person."""
    prepare: Callable[[], None] = lambda: None
    """Work that comes before the launch, once the caller may launch. Safe to repeat."""

    @property
    def run_tags(self) -> dict[str, str]:
        """All tags of the run, as Dagster's webserver takes them."""
        tags = {**self.tags, **self.own_tags}
        if self.first is None:
            return tags
        if self.last is None:
            return {**tags, PARTITION: self.first}
        return {**tags, RANGE_START: self.first, RANGE_END: self.last}


def launch(
    project: Project,
    target: str,
    partitions: str | None,
    *,
    resources: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Materialize `target` for `partitions`, which is `KEY`, `FIRST..LAST`, or None for a table without partitions.

    `target` is a model, its study, its predictions or their live performance, a table, or the online store of a feature
    table, as `ml-assets launch` takes it. `resources` are changes of the declared resources of this launch's workers.
    Raises `NotFound`, `LaunchRefused` and `RunFailed`.
    """
    return launch_here(project, launchable(project, target, partitions, resources=resources), on_progress)


def launch_here(project: Project, what: Launchable, on_progress: Callable[[str], None]) -> Finished:
    """Launch `what` in this process. Raises `LaunchRefused`, `RunFailed`, and the errors of its preparation."""
    if threading.current_thread() is not threading.main_thread():
        raise LaunchRefused("launch in the main thread of a process: Python gives Ctrl-C to no other thread")
    what.prepare()
    return materialize(
        project,
        what.keys,
        partition=what.first,
        last=what.last,
        tags={**what.tags, **what.own_tags},
        on_progress=on_progress,
    )


def launchable(
    project: Project,
    target: str,
    partitions: str | None,
    *,
    resources: str | None = None,
    trains: bool = True,
) -> Launchable:
    """Return what a launch of `target` for `partitions` would materialize; see `launch`.

    Without `trains`, the launch runs no workers, so a spent budget does not refuse it. Raises `NotFound`,
    `LaunchRefused`, `ProfileRefused` and `BudgetSpent`.
    """
    spec = model_named(project, target, partitions)
    is_study = spec is not None and target == f"{spec.name}/{HYPERPARAMETERS}"
    if spec is None or is_study:
        if resources is not None and spec is None:
            raise LaunchRefused(
                f"--resources is for a model's workers, and {target} is a table: leave the option out"
            )
        keys = [dg.AssetKey(target.split("/"))]
    else:
        keys = [stage_key(spec, stage) for stage in STAGES]
    if spec is not None:
        # Refuse wrong resources now, not after the snapshot.
        spec.resources.of("" if is_study else partitions or "", changes_of(resources or ""))
        if trains:
            _require_budget(project, spec.name, None if is_study else partitions)
    known = project.defs_of(target).resolve_asset_graph().get(keys[0]).partitions_def
    if len(keys) > 1:
        require_one_partition(target, known, partitions)
    first, last = typed_range(target, known, partitions)
    return Launchable(
        keys=keys, first=first, last=last, tags={} if resources is None else {RESOURCES: resources}
    )


def _require_budget(project: Project, model: str, partition: str | None) -> None:
    """Raise `BudgetSpent` if a launch would train although the budget of the month is spent."""
    if project.settings.prices is None:
        return
    from ml_assets.context.plan import plan_of
    from ml_assets.extras.costs.budget import BudgetSpent, require_budget

    try:
        require_budget(project.platform, model)
    except BudgetSpent:
        if partition is None or not plan_of(project, model, partition).is_as_trained:
            raise


def model_named(project: Project, target: str, partitions: str | None) -> TrainingPipelineSpec | None:
    """Return the spec of the model that `target` names, itself or its study; None if it names a table.

    Raises `LaunchRefused` or `NotFound` for anything else.

    A name without a slash is first looked up as a model, although tables of the same folder often share it.
    """
    model, _, rest = target.partition("/")
    spec = None if rest and model in TABLES else project.declared.find_pipeline(model)
    if spec is not None and not rest:
        return spec
    tables = _tables_in(project.defs_of(target))
    if target in tables:
        return None
    if spec is not None and rest == HYPERPARAMETERS:
        if spec.tuning is None:
            raise LaunchRefused(
                f"{model} declares no study: add `tuning` to its defs.yaml, with `space` and `trials`"
            )
        return spec
    if spec is not None and rest in (PREDICTIONS, LIVE):
        if spec.scoring is not None:
            return None
        raise LaunchRefused(f"{model} declares no batch scoring: add `scoring: {{}}` to its defs.yaml")
    if spec is not None and rest in STAGES:
        raise LaunchRefused(
            f"{target} materializes only together with the model's other assets: ml-assets launch {model} "
            f"{partitions or 'PARTITION'}"
        )
    raise _unknown(project, target)


def _unknown(project: Project, target: str) -> LaunchRefused | NotFound:
    """Return the error for a target that no file declares, with the nearest of all names."""
    tables, models = _tables_in(project.defs), project.declared.pipelines()
    if same := [table for table in tables if table.partition("/")[2] == target]:
        return LaunchRefused(
            f"'{target}' is a table: give its folder, too: "
            f"{' or '.join(f'ml-assets launch {one} PARTITIONS' for one in same)}"
        )
    studies = [f"{name}/{HYPERPARAMETERS}" for name, one in models.items() if one.tuning is not None]
    names = [*sorted([*models, *studies]), *tables]
    return NotFound(f"no model or table is named '{target}'{did_you_mean(target, names)}")


def _tables_in(defs: dg.Definitions) -> list[str]:
    """Return the tables and online stores that `defs` define, sorted."""
    keys = defs.resolve_asset_graph().get_all_asset_keys()
    return sorted(key.to_user_string() for key in keys if is_table(key) or is_online(key))


def typed_range(
    name: str, partitions: dg.PartitionsDefinition | None, typed: str | None
) -> tuple[str | None, str | None]:
    """Return the first and last key of `typed`, which is `KEY`, `FIRST..LAST` or nothing. Last is None for one key.

    `LaunchRefused` names the partitions of `name`.
    """
    if partitions is None:
        if typed:
            raise LaunchRefused(f"{name} has no partitions: leave out '{typed}'")
        return None, None
    keys = partitions.get_partition_keys()
    if not typed:
        raise LaunchRefused(
            f"{name} has partitions {keys[0]} to {keys[-1]}: name a partition, or a range FIRST..LAST"
        )
    first, dots, last = typed.partition("..")
    for key in (first, last) if dots else (first,):
        _require_key(name, partitions, keys, key)
    if dots and last < first:
        raise LaunchRefused(f"{name}: the range {typed} ends before it begins: write FIRST..LAST")
    return first, last if dots else None


def require_one_partition(model: str, partitions: dg.PartitionsDefinition | None, typed: str | None) -> None:
    """Raise `LaunchRefused`, with the newest partition, if `typed` is not one partition of a model."""
    first, last = typed_range(model, partitions, typed) if typed else (None, None)
    if partitions is not None and (first is None or last is not None):
        newest = last or partitions.get_last_partition_key()
        raise LaunchRefused(f"{model} is trained for one partition: ml-assets launch {model} {newest}")


def require_partitions(project: Project, table: str, typed: str) -> None:
    """Raise `LaunchRefused` if `typed`, a key or a range, is not one of a declared table with partitions."""
    key = dg.AssetKey(table.split("/"))
    if (partitions := project.defs_of(table).resolve_asset_graph().get(key).partitions_def) is not None:
        typed_range(table, partitions, typed)


def _require_key(name: str, partitions: dg.PartitionsDefinition, keys: Sequence[str], key: str) -> None:
    """Raise `LaunchRefused` with the nearest earlier key if `key` is not among `keys`, which are sorted."""
    at = bisect_left(keys, key)
    if at < len(keys) and keys[at] == key:
        return

    is_hourly, begin = isinstance(begin_of_key(keys[0]), datetime), begin_of_key(key)
    if begin is None or isinstance(begin, datetime) != is_hourly:
        form = "an hour: write YYYY-MM-DDTHH" if is_hourly else "a date: write YYYY-MM-DD"
        raise LaunchRefused(
            f"{name} has no partition '{key}', which is not {form}, from {keys[0]} to {keys[-1]}"
        )
    before = f"; the partition before it is '{keys[at - 1]}'" if 0 < at < len(keys) else ""
    after = f"; {_why_last(partitions)}" if at == len(keys) else ""
    raise LaunchRefused(f"{name} has no partition '{key}', only {keys[0]} to {keys[-1]}{before}{after}")


def _why_last(partitions: dg.PartitionsDefinition) -> str:
    """Return why there is no later partition: the declared `end`, or else the present."""
    end = partitions.end if isinstance(partitions, dg.TimeWindowPartitionsDefinition) else None
    if end is not None and end <= datetime.now(UTC):
        return "for later ones, move or remove `end` of its partitions in defs.yaml"
    return "a partition comes once it is over"


def materialize(
    project: Project,
    keys: Sequence[dg.AssetKey],
    *,
    partition: str | None = None,
    last: str | None = None,
    tags: Mapping[str, str] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Run `keys` for one partition, for `partition`..`last`, or without partitions.

    Raises `RunFailed`, and `KeyboardInterrupt` if a person stopped it.
    """
    span = {RANGE_START: partition, RANGE_END: last} if partition and last else {}
    defs = project.defs_of(*sorted(key.to_user_string() for key in keys))
    job = defs.resolve_implicit_global_asset_job_def()
    run_id = str(uuid.uuid4())
    began = time.monotonic()
    tidy(project, defs)
    with (
        _announced(project, run_id),
        watched(run_id),
        _canceled_if_stopped(project.instance, run_id),
        working_beside(partial(_follow, project.instance, run_id, on_progress), "progress"),
        not_for_children() as interrupts,
        stopping_by(
            Stop(
                is_asked=lambda: interrupts.came,
                is_cancel=lambda: True,  # nobody resumes a run of a command
                tell=partial(_cancel, project.instance, run_id),
            )
        ),
        launched_in_terminal(),
    ):
        result = job.execute_in_process(
            run_config=QUIET,
            instance=project.instance,
            asset_selection=list(keys),
            partition_key=None if span else partition,
            tags={**(tags or {}), **span},
            run_id=run_id,
            raise_on_error=False,
        )
        if _was_terminated(result) or (interrupts.came and not result.success):
            raise KeyboardInterrupt
    if not result.success:
        raise RunFailed(why_it_failed(result.all_events))
    return _finished(result, run_id, time.monotonic() - began)


def _cancel(instance: dg.DagsterInstance, run_id: str) -> None:
    """Tell Dagster that a person stops the run, so that it ends as canceled."""
    run = instance.get_run_by_id(run_id)
    if run is not None and run.status == dg.DagsterRunStatus.STARTED:
        instance.report_run_canceling(run, _STOPPED)


@contextmanager
def _canceled_if_stopped(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Report the run as canceled if a person stops it where no step tells Dagster."""
    try:
        yield
    except (KeyboardInterrupt, DagsterExecutionInterruptedError):
        run = instance.get_run_by_id(run_id)
        ended = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED)
        if run is not None and run.status not in ended:
            instance.report_run_canceled(run, _STOPPED)
        raise KeyboardInterrupt from None


def _was_terminated(result: dg.ExecuteInProcessResult) -> bool:
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(one is not None and one.cls_name == Terminated.__name__ for one in errors)


def _finished(result: dg.ExecuteInProcessResult, run_id: str, seconds: float) -> Finished:
    materializations = result.get_asset_materialization_events()
    observations = [
        event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()
    ]
    return Finished(
        run_id=run_id,
        seconds=seconds,
        step_seconds={
            event.step_key: event.step_success_data.duration_ms / 1000
            for event in result.all_events
            if event.is_step_success and event.step_key
        },
        materialized=len(materializations),
        metadata={
            event.asset_key: {name: value.value for name, value in event.materialization.metadata.items()}
            for event in materializations
            if event.asset_key
        },
        observed={one.asset_key: one.description for one in observations if one.description},
    )


def why_it_failed(events: Iterable[dg.DagsterEvent]) -> str:
    """Return the sentence of the first step that failed, of the events of a run."""
    for event in events:
        if event.is_step_failure and event.step_failure_data.error:
            failure = event.step_failure_data.user_failure_data
            error = event.step_failure_data.error
            while error.cls_name in _WRAPPERS and error.cause:
                error = error.cause
            # "module.Class: sentence" without the module.
            _, name, rest = error.message.partition(f"{error.cls_name}: ")
            message = (failure and failure.description) or f"{name}{rest}" or error.message
            step, sentence = _step(event.step_key or ""), message.strip()
            # A sentence about a table begins with the table's name, which is also the step's name.
            return sentence if sentence.startswith((f"{step}:", f"{step} ")) else f"{step}: {sentence}"
    return "the run failed before any step; ML_ASSETS_TRACEBACK=1 shows why"


def _follow(
    instance: dg.DagsterInstance, run_id: str, tell: Callable[[str], None], over: threading.Event
) -> None:
    """Report progress to `tell` from the run's events until `over`."""
    cursor: str | None = None
    while not over.wait(POLL_SECONDS):
        page = instance.get_records_for_run(run_id, cursor=cursor)
        cursor = page.cursor
        said = [text for record in page.records if (text := _in_words(record.event_log_entry.dagster_event))]
        if said:
            tell(said[-1])


def _in_words(event: dg.DagsterEvent | None) -> str | None:
    if event is None:
        return None
    if event.is_step_start and event.step_key:
        return _step(event.step_key).rpartition(".")[2]
    if event.is_asset_observation:
        facts = {name: v.value for name, v in event.asset_observation_data.asset_observation.metadata.items()}
        shown = [f"{name} {facts[name]:.4g}" for name in ("step", "loss", "validation_loss") if name in facts]
        return f"train: {', '.join(shown)}" if shown else None
    return None


def _step(key: str) -> str:
    """Return the asset `a/b` of a step that Dagster calls `a__b`."""
    return key.replace("__", "/")


@contextmanager
def _announced(project: Project, run_id: str) -> Iterator[None]:
    """Lock a file during the block, so that other commands see that this run has a process."""
    folder = project.commands_folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run_id}.run"
    with create_locked(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def tidy(project: Project, defs: dg.Definitions) -> None:
    """Update Dagster's records: cancel runs whose process is gone, and log partitions of `defs` that Dagster lacks."""
    end_abandoned(project)
    reconcile(
        project.instance,
        project.reader(),
        project.platform.ledger,
        tables_of(defs.resolve_asset_graph()),
        inherited_by(project.platform),
    )


def end_abandoned(project: Project) -> None:
    """Mark runs of commands as canceled in Dagster if their process is gone: nobody holds the lock of its file."""
    instance = (
        project.instance
    )  # also without such a file: it creates Dagster's storage, or says why it cannot
    for path in sorted(project.commands_folder.glob("*.run")):
        with suppress(FileNotFoundError), path.open() as file:
            if not take_lock(file.fileno(), waits=False):
                continue  # its process lives, or another command is ending the run
            run = instance.get_run_by_id(path.stem)
            if run is not None and not run.is_finished:
                instance.report_run_canceled(run, "The process of this run was killed.")
            path.unlink(missing_ok=True)

"""Work of `ml-assets plan`: the steps that materializing a model would run, and the reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.cli.launch import typed_range
from ml_assets.cli.project import Project
from ml_assets.cli.terminal import Problem, say
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.steps.train import READ_AT, READ_DIGEST, SETTINGS_DIGEST
from ml_assets.components.training_pipeline import stage_key
from ml_assets.data.tables.cadence import UNPARTITIONED
from ml_assets.data.tables.declared import DeclaredTable
from ml_assets.data.tables.guard import WindowValidation, validate_window
from ml_assets.model.release.bundle_store import BundleDamaged, BundleMissing
from ml_assets.model.release.initial_version import InitialModelRefused
from ml_assets.model.release.registry import VersionMissing
from ml_assets.model.steps.champion import champion_columns, champion_has_seen
from ml_assets.model.steps.declared_functions import MetricUnusable, require_own_metrics
from ml_assets.model.steps.identity import settings_digest
from ml_assets.model.steps.snapshot import initial_of, source_values
from ml_assets.model.steps.window import ColumnChange, ReadBy, changes_since
from resources.words import name_some

if TYPE_CHECKING:
    from ml_assets.dagster_host.asset_graph import BaseAssetGraph
    from ml_assets.extras.tuning.chosen import Chosen


SHOWN = 10
"""Stale partitions that the plan names. It counts the others."""


@dataclass(frozen=True, kw_only=True)
class PlannedPartition:
    """State of one partition of a model."""

    validation: WindowValidation
    """Result of the guard, equal to that of a run's first step."""
    commit: str
    """Commit of main."""
    done: bool
    """True if the partition was evaluated before."""
    has_its_settings: bool
    """True if the newest checkpoint has the same settings, seed, code and columns."""
    has_its_values: bool
    """True if the columns that its training read hold the same values now."""
    changes: Sequence[ColumnChange]
    """Columns of the window that changed since the newest checkpoint."""
    first_possible: str | None
    """First partition of the model with a complete window; None if there is none."""
    deprecated: Sequence[DeclaredTable]
    """Deprecated tables among those that it reads, at any depth."""
    chosen: "Chosen | None"
    """Values that a study chose for the next training; None for a model without a study."""
    trained_with: str
    """Digest of the study's result behind the newest checkpoint; empty for declared values, and without a checkpoint.
    """
    metric_fault: str
    """Reason for which the first step would refuse an own metric; empty if it would not."""
    initial: str
    """Version, as `model/number`, whose weights the training would begin with; empty for random weights."""
    initial_fault: str
    """Reason for which the second step would refuse that version; empty if it would not."""
    champion_has_seen: str
    """Sentence on a champion that has seen days of the holdout; empty if it has not."""

    @property
    def is_as_trained(self) -> bool:
        """True if a launch would find the finished training."""
        return self.has_its_settings and self.has_its_values


def plan(project: Project, model: str, partition: str) -> None:
    """Print what a launch of `model` at `partition` would run, and why."""
    spec = project.pipeline(model)
    graph = project.defs.resolve_asset_graph()
    definition = graph.get(stage_key(spec, "training_set")).partitions_def
    if typed_range(model, definition, partition)[1] is not None:
        raise Problem(f"a plan is for one partition of a model, not for {partition}")
    planned = look(project, spec, partition)
    table = spec.features.table
    validation = planned.validation
    first, last = validation.keys[0], validation.keys[-1]
    say(
        f"{model} {partition} reads {len(validation.keys)} partitions of {table}, {first} to {last}, "
        f"at main {planned.commit[:12]}"
    )
    for what, why in validation.refused.items():
        state, _, reason = why.splitlines()[0].removeprefix("is ").partition(": ")
        say(f"  {state:9} {what}: {reason}")
    for key, why in list(validation.stale.items())[:SHOWN]:
        say(f"  stale     {table} {key}: {why}")
    if len(validation.stale) > SHOWN:
        say(f"  stale     {table}: {len(validation.stale) - SHOWN} more")
    for what, why in list(validation.impossible.items())[:SHOWN]:
        say(f"  missing   {what}: {why.removeprefix('is missing ')}")
    by_hand: list[str] = []
    for name, keys in validation.to_build.items():
        spans = _spans(keys, graph.get(dg.AssetKey(name.split("/"))).partitions_def)
        shown = ", ".join(_named(span) for span in spans) or "the whole table"
        say(f"  missing   {name}: {shown}")
        by_hand += [f"ml-assets launch {name} {_typed(span)}" for span in spans] or [
            f"ml-assets launch {name}"
        ]
    for change in planned.changes[:SHOWN]:
        say(f"  changed   {table} {_in_words(change)}")
    if len(planned.changes) > SHOWN:
        say(f"  changed   {table}: {len(planned.changes) - SHOWN} more")
    for one in planned.deprecated:
        say(f"  deprecated {one.table}: {one.deprecated}")
    if planned.chosen is not None:
        say(f"  values    {planned.chosen.says}")
    if planned.initial and not planned.initial_fault:
        say(f"  weights   begin with {planned.initial}")
    if planned.champion_has_seen:
        say(f"  champion  {planned.champion_has_seen}")
    say()
    for line in _conclusion(spec, partition, planned, by_hand):
        say(line)
    if validation.stale:
        say("To rebuild the stale partitions:")
        for span in _spans(list(validation.stale), graph.get(dg.AssetKey(table.split("/"))).partitions_def):
            say(f"  ml-assets launch {table} {_typed(span)}")


def look(project: Project, spec: TrainingPipelineSpec, partition: str) -> PlannedPartition:
    """Validate the window as the first step of a run would. Raises `Problem` if the window is empty."""
    from ml_assets.components.metadata import declared_tables
    from ml_assets.extras.tuning.chosen import chosen_for

    graph = project.defs.resolve_asset_graph()
    reader = project.reader()
    table = spec.features.table
    parents = graph.get_parents_partitions(stage_key(spec, "training_set"), partition).parent_partitions
    window = sorted(parent.partition_key or UNPARTITIONED for parent in parents)
    if not window:
        raise Problem(
            f"{spec.name} {partition}: its window contains no partition of {table}; choose a later partition"
        )
    tables = declared_tables(project.defs)
    validation = validate_window(reader, project.platform.ledger, tables, table, window)
    done = project.instance.get_materialized_partitions(stage_key(spec, "evaluation"))
    chosen = chosen_for(spec, project.platform, window)
    initial, initial_fault = _initial(project, spec, window)
    newest = _newest_checkpoint(project, spec, partition) if partition in done else {}
    choice = chosen.choice if chosen is not None else None
    is_whole = not validation.barred and READ_AT in newest
    return PlannedPartition(
        validation=validation,
        deprecated=[one for one in tables.with_inputs(table) if one.deprecated],
        commit=reader.commit_id,
        done=partition in done,
        has_its_settings=partition in done
        and newest.get(SETTINGS_DIGEST) == settings_digest(spec, choice=choice),
        has_its_values=is_whole and newest[READ_DIGEST] == source_values(spec, reader, table, window).digest,
        changes=changes_since(spec, reader, newest[READ_AT], window, champion_columns(spec, project.platform))
        if is_whole
        else (),
        first_possible=_first_possible(graph, spec),
        chosen=chosen,
        trained_with=newest.get("study", ""),
        metric_fault=_metric_fault(spec),
        initial=initial,
        initial_fault=initial_fault,
        champion_has_seen=champion_has_seen(spec, project.platform, window),
    )


def _metric_fault(spec: TrainingPipelineSpec) -> str:
    try:
        require_own_metrics(spec.name, spec.evaluation)
    except MetricUnusable as error:
        return f"{error}"
    return ""


def _initial(project: Project, spec: TrainingPipelineSpec, window: Sequence[str]) -> tuple[str, str]:
    """Return the version that the training would begin with, and the reason for which it would be refused."""
    try:
        if (initial := initial_of(spec, project.platform)) is None:
            return "", ""
        initial.require_unseen(spec.holdout_of(window))
    except (InitialModelRefused, VersionMissing, BundleMissing, BundleDamaged) as refused:
        return spec.model.init_from or "", f"{refused}"
    return initial.version, ""


def _newest_checkpoint(project: Project, spec: TrainingPipelineSpec, partition: str) -> dict[str, Any]:
    """Return the metadata of the partition's newest checkpoint, as plain values."""
    newest = project.instance.fetch_materializations(
        dg.AssetRecordsFilter(stage_key(spec, "checkpoint"), asset_partitions=[partition]), limit=1
    ).records
    event = newest[0].asset_materialization if newest else None
    return {name: one.value for name, one in event.metadata.items()} if event else {}


def _first_possible(graph: "BaseAssetGraph", spec: TrainingPipelineSpec) -> str | None:
    def keys(asset: dg.AssetKey) -> Sequence[str]:
        partitions = graph.get(asset).partitions_def
        return partitions.get_partition_keys() if partitions else ()

    whole = keys(dg.AssetKey(spec.features.table.split("/")))[spec.window.total - 1 :]
    return next((key for key in keys(stage_key(spec, "training_set")) if whole and key >= whole[0]), None)


def _conclusion(
    spec: TrainingPipelineSpec, partition: str, planned: PlannedPartition, by_hand: Sequence[str]
) -> list[str]:
    launch = f"ml-assets launch {spec.name} {partition}"
    validation = planned.validation
    if planned.metric_fault:
        return [f"It would refuse: {planned.metric_fault}."]
    if len(validation.keys) < spec.window.total:
        remedy = (
            f"{planned.first_possible} is the first partition with a complete window: ml-assets plan {spec.name} "
            f"{planned.first_possible}"
            if planned.first_possible
            else f"{spec.features.table} has fewer partitions: choose a shorter window."
        )
        return [
            f"It would refuse: the window needs {spec.window.total} partitions and has {len(validation.keys)}.",
            remedy,
        ]
    if validation.rejected:
        return [
            "It would refuse. Fix the sources of the rejected partitions and materialize these again,",
            "or accept one as it is: ml-assets accept TABLE PARTITION --reason '…'.",
        ]
    if validation.impossible:
        return [
            "It would refuse: no run can build partitions outside their table. Change `start` or `end` of the table,",
            f"or choose another partition of {spec.name}.",
        ]
    if validation.to_build:
        return [
            "It would refuse. While `ml-assets ui` runs, the sensor build_missing_upstream then builds the missing",
            "partitions in order, and after them the model. By hand, in this order:",
            *(f"  {command}" for command in (*by_hand, launch)),
        ]
    if not validation.ok:
        return ["It would refuse. Fix the sources of the unusable partitions, then materialize these again."]
    if planned.initial_fault:
        return [f"It would refuse: {planned.initial_fault}."]
    if validation.stale and spec.on_stale_inputs == "refuse":
        return ["It would refuse: `on_stale_inputs: refuse` forbids stale inputs."]
    if planned.is_as_trained:
        return [
            "It was trained and evaluated before, and no value that its training reads changed since. A launch reuses",
            f"the finished training and repeats only snapshot and evaluation. Run it: {launch}",
        ]
    how = f"{spec.training.workers} processes, up to {spec.training.epochs} epochs"
    return [
        *([_why_again(planned)] if planned.done else ()),
        f"It would run validate_inputs → snapshot → train ({how}) → evaluate → register.",
        f"Run it: {launch}",
    ]


def _why_again(planned: PlannedPartition) -> str:
    """Return the reason for which a trained partition would be trained again."""
    choice = planned.chosen.choice if planned.chosen is not None else None
    if planned.has_its_settings:
        return "Values that its training reads changed since it was trained, so it would train again."
    now, before = choice.source if choice is not None else "", planned.trained_with
    if now == before:
        return "Its settings, code or columns changed since it was trained, so it would train again."
    names = [f"study {one[:12]}" if one else "the declaration" for one in (before, now)]
    return (
        f"Its hyperparameters are from {names[0]}, and those of now from {names[1]}, so it would train again."
    )


_READERS: Mapping[ReadBy, str] = {
    "training": "the training reads them",
    "evaluation": "only the evaluation reads them",
    "nothing": "neither training nor evaluation reads them",
}


def _in_words(change: ColumnChange) -> str:
    read = _READERS[change.read_by]
    return f"{name_some(change.keys)}: {name_some(change.columns)} changed since the last training; {read}"


def _spans(keys: Sequence[str], partitions: dg.PartitionsDefinition | None) -> list[list[str]]:
    """Return the runs of neighbouring keys in the sorted `keys`; empty for a table without partitions."""
    if partitions is None:
        return []
    order = {key: i for i, key in enumerate(partitions.get_partition_keys())}
    spans: list[list[str]] = []
    for key in keys:
        if spans and order[key] == order[spans[-1][-1]] + 1:
            spans[-1].append(key)
        else:
            spans.append([key])
    return spans


def _typed(span: Sequence[str]) -> str:
    return span[0] if len(span) == 1 else f"{span[0]}..{span[-1]}"


def _named(span: Sequence[str]) -> str:
    return span[0] if len(span) == 1 else f"{_typed(span)} ({len(span)})"

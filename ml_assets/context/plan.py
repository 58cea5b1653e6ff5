"""Plan of a launch of a model: the window that it would read, and what stands in its way.

It asks the same guard as the first step of a run, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.components.behind import TABLES
from ml_assets.components.feature_table import is_online
from ml_assets.components.pipeline_steps import (
    ELSEWHERE,
    READ_AT,
    READ_DIGEST,
    RESTORED,
    SETTINGS_DIGEST,
)
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.training_pipeline import stage_key
from ml_assets.context.errors import LaunchRefused
from ml_assets.context.launch import model_named, require_one_partition, typed_range
from ml_assets.context.project import Project
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
from ml_assets.model.steps.spec import PREDICTIONS
from ml_assets.model.steps.window import ColumnChange, changes_since

if TYPE_CHECKING:
    from ml_assets.dagster_host.asset_graph import BaseAssetGraph
    from ml_assets.extras.costs.expected import Expectation
    from ml_assets.extras.tuning.chosen import Chosen


_LOOKED_AT = 50
"""Newest checkpoints of a partition that a plan looks at."""


@dataclass(frozen=True)
class PartitionSpan:
    """Neighbouring partitions of a table."""

    keys: Sequence[str]
    """Their keys, in order."""

    @property
    def typed(self) -> str:
        """The span as `launch` takes it: `KEY` or `FIRST..LAST`."""
        return self.keys[0] if len(self.keys) == 1 else f"{self.keys[0]}..{self.keys[-1]}"

    @property
    def named(self) -> str:
        """The span with the number of its partitions, if it has several."""
        return self.typed if len(self.keys) == 1 else f"{self.typed} ({len(self.keys)})"


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """State of one partition of a model, and of its window."""

    model: str
    partition: str
    spec: TrainingPipelineSpec
    """Declaration of the model."""

    validation: WindowValidation
    """Result of the guard, equal to that of a run's first step."""
    to_build: Mapping[str, Sequence[PartitionSpan]]
    """Table → missing partitions that a launch can build, in the order to build them; no span for a table without
    partitions."""
    to_rebuild: Mapping[str, Sequence[PartitionSpan]]
    """Table → stale partitions, in the order to build them; no span for a table without partitions."""
    commit: str
    """Commit of main."""
    done: bool
    """True if a training of the partition was evaluated before."""
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
    expected: "Expectation | None" = None
    """Hours, money and start of the training; None if a launch would find it finished, and if nobody asked."""

    @property
    def is_as_trained(self) -> bool:
        """True if a launch would find the finished training."""
        return self.has_its_settings and self.has_its_values


def plan_of(project: Project, model: str, partition: str | None) -> LaunchPlan:
    """Validate the window of `model` at `partition` (None: the newest) as the first step of a run would.

    Raises `NotFound` for another model, and `LaunchRefused` for another partition or an empty window.
    """
    from ml_assets.extras.tuning.chosen import chosen_for

    spec = project.declared.pipeline(model)
    defs = project.defs_of(model)
    graph = defs.resolve_asset_graph()
    definition = graph.get(stage_key(spec, "training_set")).partitions_def
    if partition is None:
        partition = (definition.get_last_partition_key() if definition is not None else None) or ""
    require_one_partition(model, definition, partition)
    reader = project.reader()
    table = spec.features.table
    parents = graph.get_parents_partitions(stage_key(spec, "training_set"), partition).parent_partitions
    window = sorted(parent.partition_key or UNPARTITIONED for parent in parents)
    if not window:
        raise LaunchRefused(
            f"{spec.name} {partition}: its window contains no partition of {table}; choose a later partition"
        )
    tables = project.declared.tables_with(defs)
    validation = validate_window(reader, project.platform.ledger, tables, table, window)
    newest = _newest_checkpoint(project, spec, partition) if _is_evaluated(project, spec, partition) else {}
    done = bool(newest)
    chosen = chosen_for(spec, project.platform, window)
    initial, initial_fault = _initial(project, spec, window)
    choice = chosen.choice if chosen is not None else None
    is_whole = not validation.barred and READ_AT in newest

    def spans(name: str, keys: Sequence[str]) -> list[PartitionSpan]:
        return _spans(keys, _partitions_of(project, defs, name))

    return LaunchPlan(
        model=model,
        partition=partition,
        spec=spec,
        validation=validation,
        to_build={name: spans(name, keys) for name, keys in validation.to_build.items()},
        to_rebuild={name: spans(name, keys) for name, keys in validation.to_rebuild.items()},
        deprecated=[one for one in tables.with_inputs(table) if one.deprecated],
        commit=reader.commit_id,
        done=done,
        has_its_settings=done and newest.get(SETTINGS_DIGEST) == settings_digest(spec, choice=choice),
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


def with_expectation(project: Project, planned: LaunchPlan) -> LaunchPlan:
    """Return a plan with what its training is expected to take. Reads the record of each training of the pipeline."""
    from ml_assets.extras.costs.expected import expected_of

    if planned.is_as_trained:
        return planned
    return replace(planned, expected=expected_of(project.platform, planned.spec, planned.partition))


def missing_behind(project: Project, target: str, partitions: str | None) -> list[tuple[str, str | None]]:
    """Return tables and partitions, as `launch` takes them, that `target` reads and that are missing: in the order to
    build them.

    `target` is a model, its study or predictions, or a table. Raises `NotFound`, and `LaunchRefused` for another asset.
    """
    spec = model_named(project, target, partitions)
    model, _, rest = target.partition("/")
    if spec is not None:
        to_build = plan_of(project, spec.name, partitions or "").to_build
    elif model not in TABLES and rest == PREDICTIONS:
        from ml_assets.model.steps.scoring import NothingInProduction, require_production

        try:  # before tables are built for nothing
            require_production(project.platform, model)
        except NothingInProduction as error:
            raise LaunchRefused(f"{target}: {error}") from error
        to_build = _behind(project, target, partitions, project.declared.pipeline(model).features.table)
    elif model not in TABLES or is_online(dg.AssetKey(target.split("/"))):
        raise LaunchRefused(
            "--with-missing builds what a model, its study, its predictions or a table reads, and "
            f"{target} is another asset: leave the option out"
        )
    else:
        found = _behind(project, target, partitions, target)
        to_build = {name: spans for name, spans in found.items() if name != target}
    return [
        (name, one) for name, spans in to_build.items() for one in [span.typed for span in spans] or [None]
    ]


def _behind(
    project: Project, target: str, partitions: str | None, table: str
) -> dict[str, list[PartitionSpan]]:
    """Return table → missing partitions of `table` and all tables behind it, for the typed partitions of `target`."""
    defs = project.defs_of(target)
    definition = _partitions_of(project, defs, target)
    first, last = typed_range(target, definition, partitions)
    keys = [UNPARTITIONED]
    if definition is not None and first is not None:
        keys = [key for key in definition.get_partition_keys() if first <= key <= (last or first)]
    found = validate_window(
        project.reader(), project.platform.ledger, project.declared.tables_with(defs), table, keys
    )
    return {
        name: _spans(missing, _partitions_of(project, defs, name)) for name, missing in found.to_build.items()
    }


def _partitions_of(project: Project, defs: dg.Definitions, table: str) -> dg.PartitionsDefinition | None:
    key = dg.AssetKey(table.split("/"))
    graph = defs.resolve_asset_graph()
    if not graph.has(key):  # an input that only stored partitions name
        graph = project.defs_of(table).resolve_asset_graph()
    return graph.get(key).partitions_def


def _is_evaluated(project: Project, spec: TrainingPipelineSpec, partition: str) -> bool:
    """True if Dagster knows an evaluation of the partition. The ledger has it, too, and is asked first.

    Opening Dagster's storage takes half as long as importing Dagster, and most plans are about a new partition.
    """
    if all(one.partition != partition for one in project.platform.ledger.models.evaluations(spec.name)):
        return False
    return partition in project.instance.get_materialized_partitions(stage_key(spec, "evaluation"))


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
    """Return the metadata of the partition's newest checkpoint, as plain values.

    A training that began with a checkpoint of another one does not count, nor does a model that was trained elsewhere:
    no launch of the declared model finds it.
    """
    newest = project.instance.fetch_materializations(
        dg.AssetRecordsFilter(stage_key(spec, "checkpoint"), asset_partitions=[partition]), limit=_LOOKED_AT
    ).records
    for one in newest:
        event = one.asset_materialization
        if event is not None and not {RESTORED, ELSEWHERE} & event.metadata.keys():
            return {name: value.value for name, value in event.metadata.items()}
    return {}


def _first_possible(graph: "BaseAssetGraph", spec: TrainingPipelineSpec) -> str | None:
    def keys(asset: dg.AssetKey) -> Sequence[str]:
        partitions = graph.get(asset).partitions_def
        return partitions.get_partition_keys() if partitions else ()

    whole = keys(dg.AssetKey(spec.features.table.split("/")))[spec.window.total - 1 :]
    return next((key for key in keys(stage_key(spec, "training_set")) if whole and key >= whole[0]), None)


def _spans(keys: Sequence[str], partitions: dg.PartitionsDefinition | None) -> list[PartitionSpan]:
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
    return [PartitionSpan(one) for one in spans]

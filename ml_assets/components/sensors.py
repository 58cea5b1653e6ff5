"""Sensors for new data at a source and for missing inputs of a refused run."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import zip_longest

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.backfill import PartitionBackfill

from ml_assets.components.failures import missing_in
from ml_assets.components.pages import ON_A_PAGE
from ml_assets.components.specs import DatasetSpec
from ml_assets.components.tags import ASKED_BY, PARTITION, RANGE_END, RANGE_START
from ml_assets.data.sources.kinds import open_source
from ml_assets.data.sources.protocol import PageFacts, ReadPartition, SourceReader
from ml_assets.data.sources.reading import span_of
from ml_assets.data.tables.cadence import UNPARTITIONED, Cadence
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.landing import MAIN
from ml_assets.data.tables.reader import TableReader
from resources.platform import Platform
from resources.words import counted, name_some

RECHECKED = 2
"""Newest partitions on main that each tick compares with the source, if `source.watch` says nothing else."""


def new_data_sensor(spec: DatasetSpec, key: dg.AssetKey) -> dg.SensorDefinition:
    """Return the sensor that asks the source for its latest day and requests partitions that are new or not usable.

    After `retry_seconds` it requests partitions again that failed, were rejected or are missing. It also requests
    partitions whose rows changed at the source (`SourceReader.look`), until they were read.
    """
    watch = spec.source.watch
    if watch is None:
        raise ValueError(f"datasets/{spec.name} declares no source.watch")
    table = "/".join(key.path)
    unit = "hour" if spec.cadence.kind == "hourly" else "day"

    @dg.sensor(
        name=f"{spec.name}_new_data",
        asset_selection=[key],
        minimum_interval_seconds=watch.every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if watch.enabled else dg.DefaultSensorStatus.STOPPED,
        description=f"Asks the source of {table} for its latest {unit} and requests new or unusable partitions.",
    )
    def new_data(
        context: dg.SensorEvaluationContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> dg.SensorResult:
        now, cadence = datetime.now(UTC), spec.cadence
        reader = TableReader.at(platform.lake, MAIN)
        read = _read_partitions(reader, spec, table)
        asked: dict[str, float] = json.loads(context.cursor or "{}")
        # A change that was requested and not read, because its run failed, stays in the window until it is.
        window = rechecked(spec, sorted(read)) | (asked.keys() & read.keys())
        by_span = {span: key for key in read if (span := span_of(cadence, key)) is not None}
        with closing(open_source(spec.source, spec.source_table, platform)) as source:
            look = source.look(
                {span: read[key] for span, key in by_span.items()},
                [span for span, key in by_span.items() if key in window],
            )
        told = f"{_cost(look.cost)} for {counted(len(window), 'rechecked partition')}"
        context.log.info(f"the source of {table}: {told}")
        if look.ahead:
            named = name_some(sorted(by_span[span] for span in look.ahead), ON_A_PAGE)
            context.log.warning(
                f"the source of {table} dated changes of {named} later than its clock says now: its clock was set "
                "back, or was ahead before. Changes made since then look older than what was read, so these "
                "partitions are requested again. Set the clock right; then materialize them once more"
            )
        complete = cadence.complete(look.latest) if look.latest is not None else []
        closed = [key for key in complete if (spec.closes_at(key) or now) <= now]
        lacking = _lacking(reader, platform, tables, table, closed) | {by_span[span] for span in look.changed}
        if not lacking:
            if look.latest is None:
                said = f"the source of {table} has no complete {unit} yet"
            else:
                so_far = f"is complete up to {closed[-1]}" if closed else "has no partition that is over"
                said = f"{table} {so_far}; the latest {unit} of the source is {look.latest}"
            return dg.SensorResult(skip_reason=f"{said} ({told})", cursor="")
        moment = now.timestamp()
        asked = {key: at for key, at in asked.items() if key in lacking}
        due = sorted(key for key in lacking if moment - asked.get(key, -math.inf) >= watch.retry_seconds)
        cursor = json.dumps(asked | dict.fromkeys(due, moment))
        if not due:
            wait = f"waiting {watch.retry_seconds} s after the last request for {table}"
            named = name_some(sorted(lacking), ON_A_PAGE)
            return dg.SensorResult(skip_reason=f"{wait} {named}", cursor=cursor)
        ranges = _neighbours(cadence, due)
        requests = [dg.RunRequest(tags={RANGE_START: first, RANGE_END: last}) for first, last in ranges]
        return dg.SensorResult(run_requests=requests, cursor=cursor)

    return new_data


def rechecked(spec: DatasetSpec, present: Sequence[str]) -> frozenset[str]:
    """Return the partitions among `present`, sorted keys on main, whose rows each tick compares with the source."""
    time = spec.source.watch.recheck_time if spec.source.watch else None
    if time is None or not present:
        return frozenset(present[-RECHECKED:])
    ends = {key: spec.cadence.end_of(key, spec.contract.event_time_zone) for key in present}
    newest = ends[present[-1]]
    return frozenset(key for key, end in ends.items() if end and newest and end > newest - time)


def recheck_facts(spec: DatasetSpec, source: SourceReader, platform: Platform) -> PageFacts:
    """Return what each tick compares with the source, and what it reads there, for the asset's page."""
    if spec.source.watch is None:
        return {}
    reader, table = TableReader.at(platform.lake, MAIN), f"datasets/{spec.name}"
    window = sorted(rechecked(spec, _present(reader, spec, table)))
    rows = sum(one.rows for one in reader.checked_manifests(table, window)[0].values())
    return {"recheck": f"{counted(len(window), 'partition')} with {rows:,} rows; reads {source.looks_at}"}


def _cost(cost: Mapping[str, int]) -> str:
    """Return what a look at a source read, in words."""
    return ", ".join(f"{name} {number:,}" for name, number in cost.items()) or "no look at its rows"


def _lacking(
    reader: TableReader, platform: Platform, tables: DeclaredTables, table: str, keys: Sequence[str]
) -> set[str]:
    """Return the keys that another run may fix: missing, rejected or unusable."""
    validation = validate_window(reader, platform.ledger, tables, table, keys)
    rejected = {key for key in keys if f"{table} {key}" in validation.rejected}
    return rejected | {*validation.to_build.get(table, ())}


def _present(reader: TableReader, spec: DatasetSpec, table: str) -> list[str]:
    """Return the keys on main that the table covers, sorted."""
    return sorted(key for key in reader.digests(table) if spec.cadence.covers(key))


def _read_partitions(reader: TableReader, spec: DatasetSpec, table: str) -> dict[str, ReadPartition]:
    """Return the partitions of today's cadence that main holds, with what is known of their last read."""
    readable, _ = reader.checked_manifests(table, _present(reader, spec, table))
    return {
        key: ReadPartition(one.watermark, one.source_version)
        for key, one in readable.items()
        if one.cadence == spec.cadence.kind
    }


def _neighbours(cadence: Cadence, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the first and last of each run of `keys`, which are sorted, without a partition between them."""
    first = None
    for key, following in zip_longest(keys, keys[1:]):
        first = first or key
        if following is None or not cadence.are_neighbours(key, following):
            yield first, key
            first = None


@dg.run_failure_sensor(
    name="build_missing_upstream",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=5,
    description="If a run was refused for missing inputs, requests one backfill of these inputs and of the run.",
)
def build_missing_upstream(
    context: dg.RunFailureSensorContext,
    platform: dg.ResourceParam[Platform],
    tables: dg.ResourceParam[DeclaredTables],
):
    """Request one backfill per refused run: the missing partitions, in order, then the assets of the run."""
    run = context.dagster_run
    if ASKED_BY in run.tags:
        return dg.SkipReason("this sensor requested the run itself")
    missing = [
        named for event in context.get_step_failure_events() for named in [_missing_named_by(event)] if named
    ]
    if not missing or context.repository_def is None:
        return dg.SkipReason("the run failed for another reason than missing inputs")
    graph = context.repository_def.asset_graph
    wanted = _asked_for(context, graph) | {
        _partition(table, key) for named in missing for table, keys in named.items() for key in keys
    }
    wanted |= _to_build(platform, tables, graph, wanted)
    # The run's id names the backfill, so the sensor finds it when it is evaluated again and adds nothing.
    backfill_id = f"for-{run.run_id}"
    if context.instance.get_backfill(backfill_id) is not None:
        return dg.SkipReason(f"already requested as backfill {backfill_id}")
    context.instance.add_backfill(
        PartitionBackfill.from_asset_graph_subset(
            backfill_id=backfill_id,
            backfill_timestamp=datetime.now(UTC).timestamp(),
            tags={ASKED_BY: run.run_id},
            dynamic_partitions_store=context.instance,
            asset_graph_subset=AssetGraphSubset.from_asset_partition_set(wanted, graph),
            title=f"Missing inputs of run {run.run_id[:8]}",
            description=f"{len(wanted)} partitions",
            run_config=None,
        )
    )
    named = name_some(sorted({each.asset_key.to_user_string() for each in wanted}), ON_A_PAGE)
    return dg.SkipReason(f"requested backfill {backfill_id}: {len(wanted)} partitions of {named}")


def _to_build(
    platform: Platform, tables: DeclaredTables, graph: BaseAssetGraph, wanted: Iterable[AssetKeyPartitionKey]
) -> set[AssetKeyPartitionKey]:
    """Return the partitions upstream of `wanted`, at any depth, that materializing can fix according to the guard."""
    wants: dict[str, set[str]] = {}
    for each in wanted:
        for parent in graph.get_parents_partitions(each.asset_key, each.partition_key).parent_partitions:
            table = "/".join(parent.asset_key.path)
            if tables.find(table) is not None:
                wants.setdefault(table, set()).add(parent.partition_key or UNPARTITIONED)
    reader = TableReader.at(platform.lake, MAIN)
    validations = [
        validate_window(reader, platform.ledger, tables, table, sorted(keys)) for table, keys in wants.items()
    ]
    return {
        _partition(table, key)
        for validation in validations
        for table, keys in validation.to_build.items()
        for key in keys
    }


def _partition(table: str, key: str) -> AssetKeyPartitionKey:
    return AssetKeyPartitionKey(dg.AssetKey(table.split("/")), None if key == UNPARTITIONED else key)


def _missing_named_by(event: dg.DagsterEvent) -> dict[str, list[str]]:
    failure = event.step_failure_data.user_failure_data
    return missing_in(failure.metadata) if failure else {}


def _asked_for(context: dg.RunFailureSensorContext, graph: BaseAssetGraph) -> set[AssetKeyPartitionKey]:
    """Return the assets that the refused run did not make for its partition.

    Empty for a run over a range: a person has to request it again.
    """
    run, repository = context.dagster_run, context.repository_def
    partition = run.tags.get(PARTITION)
    if partition is None or repository is None:
        return set()
    # The run of a job names no assets, so take the assets of the job.
    selected = run.asset_selection or repository.get_job(run.job_name).asset_layer.executable_asset_keys
    made = {
        record.asset_key
        for record in context.instance.get_records_for_run(
            run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
        ).records
    }
    return {
        AssetKeyPartitionKey(key, partition if graph.get(key).is_partitioned else None)
        for key in selected
        if key not in made
    }

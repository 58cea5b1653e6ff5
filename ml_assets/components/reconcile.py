"""Comparison of Dagster's events with main, and events for partitions that Dagster lacks.

If a run is stopped between its merge and its events, Dagster does not know partitions that main holds. The same happens
when a person accepts a rejected partition. The lake is right, because trainings read the lake.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

from ml_assets.components.declared_metadata import is_table
from ml_assets.components.pages import ON_A_PAGE, commit_facts
from ml_assets.components.tags import DATA_VERSION
from ml_assets.tables.cadence import UNPARTITIONED
from ml_assets.tables.reader import TableReader
from resources.platform import Platform
from resources.words import name_some

_UNDER_WAY = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
REPORTED_LATER = (
    "Reported later: a run was stopped before it could report this, or a person accepted the partition."
)


@dataclass(frozen=True)
class Apart:
    """Table on which Dagster and the lake differ."""

    table: str
    unreported: tuple[str, ...]
    """Keys on main that Dagster does not know, or knows with other content."""
    gone: tuple[str, ...]
    """Keys that Dagster knows but main does not hold."""


def tables_of(graph: BaseAssetGraph) -> list[str]:
    """Return the ids of all declared tables, sorted."""
    keys = graph.get_all_asset_keys()
    return sorted(key.to_user_string() for key in keys if is_table(key))


def compare(instance: dg.DagsterInstance, reader: TableReader, tables: Iterable[str]) -> list[Apart]:
    """Return the tables on which Dagster and the commit of `reader` differ."""
    found: list[Apart] = []
    for table in tables:
        held, known = reader.digests(table), _known(instance, _asset(table))
        unreported = tuple(key for key, digest in held.items() if known.get(key) != digest)
        gone = tuple(sorted(set(known) - set(held)))
        if unreported or gone:
            found.append(Apart(table, unreported, gone))
    return found


def is_busy(instance: dg.DagsterInstance) -> bool:
    """Return True if a run is in progress, because it may be about to log its own events."""
    return bool(instance.get_runs_count(dg.RunsFilter(statuses=list(_UNDER_WAY))))


def reconcile(instance: dg.DagsterInstance, reader: TableReader, tables: Iterable[str]) -> list[Apart]:
    """Log a materialization for each partition of main that Dagster lacks; return the differences before that.

    Does nothing while a run is in progress.
    """
    if is_busy(instance):
        return []
    apart = compare(instance, reader, tables)
    for one in apart:
        manifests = reader.manifests(one.table, one.unreported)
        for key, manifest in manifests.items():
            event = dg.AssetMaterialization(
                _asset(one.table),
                partition=None if key == UNPARTITIONED else key,
                description=REPORTED_LATER,
                metadata={
                    "dagster/partition_row_count": manifest.rows,
                    **commit_facts(reader.store, reader.commit_id),
                },
                tags={DATA_VERSION: manifest.content_digest},
            )
            instance.report_runless_asset_event(event)
    return apart


@dg.sensor(
    name="report_missing_materializations",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports to Dagster the partitions of main that it lacks, after a stopped run or an acceptance.",
)
def report_missing_materializations(
    context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]
) -> dg.SensorResult:
    """Reconcile Dagster with main; never request a run. The cursor is the commit of main that Dagster knows."""
    reader = TableReader.at(platform.lake, "main")
    if context.cursor == reader.commit_id:
        return dg.SensorResult(skip_reason="main did not change")
    if is_busy(context.instance) or context.repository_def is None:
        return dg.SensorResult(
            skip_reason="waiting for the runs in progress, which report their own partitions"
        )
    apart = reconcile(context.instance, reader, tables_of(context.repository_def.asset_graph))
    reported = [f"{one.table}: {name_some(one.unreported, ON_A_PAGE)}" for one in apart if one.unreported]
    said = f"reported {'; '.join(reported)}" if reported else "Dagster knows all partitions of main"
    return dg.SensorResult(skip_reason=said, cursor=reader.commit_id)


def _asset(table: str) -> dg.AssetKey:
    return dg.AssetKey(table.split("/"))


def _known(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, str]:
    """Return key → data version of its newest materialization."""
    if partitions := instance.get_materialized_partitions(asset):
        tags = instance.event_log_storage.get_latest_tags_by_partition(
            asset, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION]
        )
        return {key: tags.get(key, {}).get(DATA_VERSION, "") for key in partitions}
    newest = instance.get_latest_materialization_event(asset)
    whole = newest.asset_materialization if newest else None
    return {UNPARTITIONED: (whole.tags or {}).get(DATA_VERSION, "")} if whole and not whole.partition else {}

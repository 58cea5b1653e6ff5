"""Dagster's graph of assets, and backfills of chosen partitions.

Private area: asset graphs and backfills. `Definitions.resolve_asset_graph` is public, but the type that it returns is
not. The public way to request runs is a sensor's `RunRequest`, which names one partition of one job. Only a backfill
orders partitions of several assets, and the public API makes none.
"""

from collections.abc import Collection
from datetime import UTC, datetime

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.backfill import PartitionBackfill

__all__ = ["AssetKeyPartitionKey", "BaseAssetGraph", "request_backfill"]


def request_backfill(
    instance: dg.DagsterInstance,
    graph: BaseAssetGraph,
    wanted: Collection[AssetKeyPartitionKey],
    *,
    backfill_id: str,
    title: str,
    tags: dict[str, str],
) -> bool:
    """Request `wanted` as one backfill, in the order of `graph`. Return False if the id was requested before."""
    if instance.get_backfill(backfill_id) is not None:
        return False
    instance.add_backfill(
        PartitionBackfill.from_asset_graph_subset(
            backfill_id=backfill_id,
            backfill_timestamp=datetime.now(UTC).timestamp(),
            tags=tags,
            dynamic_partitions_store=instance,
            asset_graph_subset=AssetGraphSubset.from_asset_partition_set(set(wanted), graph),
            title=title,
            description=f"{len(wanted)} partitions",
            run_config=None,
        )
    )
    return True

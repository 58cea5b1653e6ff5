"""Patch of Dagster's pages for assets whose partitions have an `end`.

Dagster 1.13.27 pages backwards from now, even if the partitions ended earlier. The "Plots" of an asset request the
newest 120 partitions. For a model whose data ended 120 days ago they got 120 keys that do not exist, and were empty.
"""

from datetime import UTC, datetime
from functools import wraps

from dagster import TimeWindowPartitionsDefinition
from dagster._core.definitions.partitions.context import PartitionLoadingContext
from dagster._core.types.pagination import PaginatedResults

_PAGED = TimeWindowPartitionsDefinition.get_paginated_partition_keys


@wraps(_PAGED)
def _paged_from_the_end(
    self: TimeWindowPartitionsDefinition,
    context: PartitionLoadingContext,
    limit: int,
    ascending: bool,
    cursor: str | None = None,
) -> PaginatedResults[str]:
    end = self.end_timestamp
    if end is not None and not ascending and end < context.effective_dt.timestamp():
        context = context.updated(datetime.fromtimestamp(end, UTC), context.dynamic_partitions_store)
    return _PAGED(self, context, limit, ascending, cursor)


def page_backwards_from_the_end() -> None:
    """Patch Dagster in this process so that its newest partitions are partitions that exist."""
    TimeWindowPartitionsDefinition.get_paginated_partition_keys = _paged_from_the_end

"""Newest partitions of an asset whose partitions have an `end`: a mend of Dagster's pages.

Dagster 1.13.27 pages backwards from now, past the end of the partitions. The "Plots" of an asset ask for the newest 120
partitions, so those of a model whose data ended 120 days ago got 120 keys that do not exist, and showed nothing.
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
    """Let Dagster of this process answer with partitions that exist when it is asked for the newest."""
    TimeWindowPartitionsDefinition.get_paginated_partition_keys = _paged_from_the_end

"""The newest partitions that Dagster's pages ask for are those that exist."""

from datetime import UTC, date, datetime, timedelta
from typing import Literal

import pytest
from dagster import TimeWindowPartitionsDefinition
from dagster._core.definitions.partitions.context import PartitionLoadingContext
from dagster._core.definitions.temporal_context import TemporalContext
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.components.base import partitions_definition
from ml_assets.dagster_host.webserver import page_backwards_from_the_end
from ml_assets.data.tables.cadence import PartitionsSection

DAYS = st.dates(date(2023, 12, 20), date(2024, 3, 1))


@given(
    st.sampled_from(["daily", "weekly"]),
    DAYS,
    st.none() | st.integers(0, 90),
    st.integers(0, 500 * 24),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_pages_of_newest_partitions_are_the_last_that_exist(
    cadence: Literal["daily", "weekly"],
    start: date,
    length: int | None,
    hours: int,
    limit: int,
    pages: int,
) -> None:
    end = None if length is None else start + timedelta(length)
    partitions = partitions_definition(PartitionsSection(cadence=cadence, start=start, end=end))
    assert partitions is not None
    now = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
    context = PartitionLoadingContext(
        temporal_context=TemporalContext(effective_dt=now, last_event_id=None), dynamic_partitions_store=None
    )
    found: list[str] = []
    cursor = None
    with pytest.MonkeyPatch.context() as patch:
        name = "get_paginated_partition_keys"
        patch.setattr(TimeWindowPartitionsDefinition, name, getattr(TimeWindowPartitionsDefinition, name))
        page_backwards_from_the_end()
        for _ in range(pages):
            page = partitions.get_paginated_partition_keys(context, limit, ascending=False, cursor=cursor)
            found += page.results
            cursor = page.cursor
    exist = partitions.get_partition_keys(current_time=now)
    assert found == [*reversed(exist)][: limit * pages]

"""Partition arithmetic in Dagster's words."""

from datetime import timedelta

import dagster as dg

from ml_assets.tables.cadence import PartitionsSection

MONDAY = 1


def partitions_definition(section: PartitionsSection | None) -> dg.TimeWindowPartitionsDefinition | None:
    """Dagster's partitions for a section; None for a table without."""
    if section is None:
        return None
    cadence = section.as_cadence
    end = _day_after_last(section)
    if section.cadence == "daily":
        return dg.DailyPartitionsDefinition(section.start.isoformat(), end_date=end)
    start = cadence.key_of(section.start)
    return dg.WeeklyPartitionsDefinition(start, day_offset=MONDAY, end_date=end)


def lookback_mapping(partitions: int) -> dg.PartitionMapping:
    """A partition reads itself and so many before it; those before the table's start are left out."""
    return dg.TimeWindowPartitionMapping(start_offset=-partitions, allow_nonexistent_upstream_partitions=True)


def _day_after_last(section: PartitionsSection) -> str | None:
    """Dagster's end is exclusive."""
    if section.end is None:
        return None
    cadence = section.as_cadence
    _, last = cadence.bounds(cadence.key_of(section.end))
    return (last + timedelta(days=1)).isoformat()

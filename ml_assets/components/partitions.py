"""Partitions as Dagster's definitions and mappings."""

from datetime import timedelta

import dagster as dg

from ml_assets.tables.cadence import PartitionsSection

MONDAY = 1


def partitions_definition(section: PartitionsSection | None) -> dg.TimeWindowPartitionsDefinition | None:
    """Return Dagster's partitions for a section; None for a table without partitions."""
    if section is None:
        return None
    cadence = section.as_cadence
    end = _day_after_last(section)
    if section.cadence == "daily":
        return dg.DailyPartitionsDefinition(section.start.isoformat(), end_date=end)
    start = cadence.key_of(section.start)
    if section.cadence == "monthly":
        return dg.MonthlyPartitionsDefinition(start, end_date=end)
    return dg.WeeklyPartitionsDefinition(start, day_offset=MONDAY, end_date=end)


def lookback_mapping(partitions: int) -> dg.PartitionMapping:
    """Return the mapping by which a partition reads itself and the given number before it, within the table's start."""
    return dg.TimeWindowPartitionMapping(start_offset=-partitions, allow_nonexistent_upstream_partitions=True)


def previous_weeks_mapping(partitions: int) -> dg.PartitionMapping:
    """Return the mapping by which a day reads the week before its own and the given number of weeks before that."""
    # Dagster shifts the window of the reader, in days, and takes the weeks in which its ends lie.
    return dg.TimeWindowPartitionMapping(
        start_offset=-7 * (partitions + 1), end_offset=-7, allow_nonexistent_upstream_partitions=True
    )


def _day_after_last(section: PartitionsSection) -> str | None:
    """Return the day after the last partition, because Dagster's end is exclusive."""
    if section.end is None:
        return None
    cadence = section.as_cadence
    _, last = cadence.bounds(cadence.key_of(section.end))
    return (last + timedelta(days=1)).isoformat()

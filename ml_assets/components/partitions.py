"""Partitions as Dagster's definitions and mappings."""

import dagster as dg

from ml_assets.data.tables.cadence import HOUR_KEY, CadenceKind, PartitionsSection
from ml_assets.data.validation.midnight import after

MONDAY = 1
_DAYS_OF_A_WEEK, _HOURS_OF_A_DAY = 7, 24
_LENGTHS: dict[tuple[CadenceKind, CadenceKind], int] = {
    ("daily", "weekly"): _DAYS_OF_A_WEEK,
    ("hourly", "daily"): _HOURS_OF_A_DAY,
    ("hourly", "weekly"): _DAYS_OF_A_WEEK * _HOURS_OF_A_DAY,
}
"""(cadence of a table, cadence of its coarser input) → partitions of the table in one of the input."""


def partitions_definition(section: PartitionsSection | None) -> dg.TimeWindowPartitionsDefinition | None:
    """Return Dagster's partitions for a section; None for a table without partitions."""
    if section is None:
        return None
    cadence = section.as_cadence
    start, end = cadence.key_of(section.start), _after_last(section)
    match section.cadence:
        case "hourly":
            return dg.HourlyPartitionsDefinition(start, end_date=end, fmt=HOUR_KEY)
        case "daily":
            return dg.DailyPartitionsDefinition(start, end_date=end)
        case "weekly":
            return dg.WeeklyPartitionsDefinition(start, day_offset=MONDAY, end_date=end)
        case "monthly":
            return dg.MonthlyPartitionsDefinition(start, end_date=end)


def lookback_mapping(partitions: int) -> dg.PartitionMapping:
    """Return the mapping by which a partition reads itself and the given number before it, within the table's start."""
    return dg.TimeWindowPartitionMapping(start_offset=-partitions, allow_nonexistent_upstream_partitions=True)


def coarser_mapping(own: CadenceKind, read: CadenceKind, partitions: int) -> dg.PartitionMapping:
    """Return the mapping by which a day reads the week before its own and the given number of weeks before that; an
    hour, days or weeks."""
    # Dagster shifts the window of the reader, in its own partitions, and takes those of the input in which its ends
    # lie.
    length = _LENGTHS[own, read]
    return dg.TimeWindowPartitionMapping(
        start_offset=-length * (partitions + 1),
        end_offset=-length,
        allow_nonexistent_upstream_partitions=True,
    )


def _after_last(section: PartitionsSection) -> str | None:
    """Return the day after the last partition, or its first hour, because Dagster's end is exclusive."""
    if section.end is None:
        return None
    cadence = section.as_cadence
    _, last = cadence.bounds(cadence.keys(section.end, section.end)[-1])
    return cadence.key_of(after(last))

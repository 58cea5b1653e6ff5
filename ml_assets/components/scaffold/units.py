"""Lengths of partitions, days to years: what a scaffold says of each, and looks for in it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ml_assets.data.tables.cadence import CadenceKind


@dataclass(frozen=True)
class PartitionUnit:
    """Length of a partition."""

    cadence: CadenceKind
    word: str
    least_days: int
    """Usual distance of the days with rows from which partitions are that long."""
    suffix: str
    """Unit of polars' durations, `1w`; also of a feature's name: `sold_1w`."""
    named_by: str
    """Day by which a partition is named."""
    after: str
    """Python expression: from the first day of a partition, `{first}`, the first day of the next one."""
    recent: tuple[int, int]
    """Number of recent values, and the largest distance at which they are looked for."""
    season: str = ""
    """Word for what a partition has in common with those at the distances `seasons`."""
    seasons: tuple[int, ...] = ()
    whole_years: int | None = None
    """Partitions of training from which the season is a feature: a year; two if a year has one value of each."""


UNITS: Mapping[str, PartitionUnit] = {
    one.cadence: one
    for one in (
        PartitionUnit(
            cadence="daily",
            word="day",
            least_days=0,
            suffix="d",
            named_by="day",
            after="{first} + timedelta(days=1)",
            recent=(7, 28),
            season="weekday",
            seasons=(7, 14, 21, 28),
            whole_years=365,
        ),
        PartitionUnit(
            cadence="weekly",
            word="week",
            least_days=7,
            suffix="w",
            named_by="Monday of the week",
            after="{first} + timedelta(days=7)",
            recent=(4, 52),
            season="week of the year",
            seasons=(52,),
            whole_years=52,
        ),
        PartitionUnit(
            cadence="monthly",
            word="month",
            least_days=28,
            suffix="mo",
            named_by="first day of the month",
            after="({first} + timedelta(days=31)).replace(day=1)",
            recent=(3, 36),
            season="month of the year",
            seasons=(12, 24),
            whole_years=24,
        ),
        PartitionUnit(
            cadence="quarterly",
            word="quarter",
            least_days=85,
            suffix="q",
            named_by="first day of the quarter",
            after="({first} + timedelta(days=93)).replace(day=1)",
            recent=(4, 12),
            season="quarter of the year",
            seasons=(4, 8),
            whole_years=8,
        ),
        PartitionUnit(
            cadence="yearly",
            word="year",
            least_days=330,
            suffix="y",
            named_by="first day of the year",
            after="({first} + timedelta(days=366)).replace(day=1)",
            recent=(3, 10),
        ),
    )
}
"""Cadence of a model → its unit, from short to long."""

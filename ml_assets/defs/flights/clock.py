"""Times of events and of their becoming known, in UTC, from the local clock times that a timetable prints.

Here: pure expressions over one row of the flights table. Not here: reading files (`source`), windows over
other flights (`features`).
"""

from collections.abc import Mapping

import polars as pl

_ZONES_NOT_LISTED = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")
"""Destinations without a row in the airports table."""

_CANCELLATION_KNOWN = pl.duration(hours=4)
"""The source does not say when a flight was cancelled: taken as known this long after scheduled departure."""

_DIVERSION_KNOWN = pl.duration(hours=24)
"""Nor when a flight landed elsewhere: taken as known this long after scheduled arrival or departure."""


def zone_of_airport(airports: pl.DataFrame) -> Mapping[str, str]:
    """IANA time zone by airport code, from the airports table and what it lacks."""
    listed = airports.drop_nulls("tzone").select("faa", "tzone").iter_rows()
    return {**dict(listed), **_ZONES_NOT_LISTED}


def scheduled_arrival_at(zones: Mapping[str, str]) -> pl.Expr:
    """The first moment after scheduled departure at which the clock at `dest` shows `sched_arr_time` (HHMM).

    Null where the zone of the destination is not known.
    """
    by_zone: dict[str, list[str]] = {}
    for airport, zone in zones.items():
        by_zone.setdefault(zone, []).append(airport)
    return pl.coalesce(
        pl.when(pl.col("dest").is_in(airports)).then(_next_clock_time(zone))
        for zone, airports in by_zone.items()
    ).alias("scheduled_arrival_at")


def departed_at() -> pl.Expr:
    """Scheduled departure plus `dep_delay` minutes; null where cancelled."""
    return (pl.col("scheduled_departure_at") + pl.duration(minutes="dep_delay")).alias("departed_at")


def landed_at() -> pl.Expr:
    """Scheduled arrival plus `arr_delay` minutes; null where no arrival at `dest` was reported."""
    return (pl.col("scheduled_arrival_at") + pl.duration(minutes="arr_delay")).alias("landed_at")


def outcome_known_at() -> pl.Expr:
    """Return the time at which a flight's outcome was known: at landing, or assumed for those that never landed."""
    diverted = pl.max_horizontal("scheduled_arrival_at", "departed_at") + _DIVERSION_KNOWN
    cancelled = pl.col("scheduled_departure_at") + _CANCELLATION_KNOWN
    return (
        pl.when("cancelled")
        .then(cancelled)
        .otherwise(pl.coalesce("landed_at", diverted))
        .alias("outcome_known_at")
    )


def _next_clock_time(zone: str) -> pl.Expr:
    departure = pl.col("scheduled_departure_at").dt.convert_time_zone(zone).dt.replace_time_zone(None)
    hours, minutes = pl.col("sched_arr_time") // 100, pl.col("sched_arr_time") % 100
    same_day = departure.dt.truncate("1d") + pl.duration(hours=hours, minutes=minutes)
    arrival = pl.when(same_day > departure).then(same_day).otherwise(same_day + pl.duration(days=1))
    # The hour that summer time skips is read as the one after it, the repeated one as the first of the two.
    return pl.coalesce(
        arrival.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null"),
        (arrival + pl.duration(hours=1)).dt.replace_time_zone(
            zone, ambiguous="earliest", non_existent="null"
        ),
    ).dt.convert_time_zone("UTC")

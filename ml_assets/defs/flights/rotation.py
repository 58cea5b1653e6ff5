"""Time left until the aircraft of a flight is back: by its last departure, and by its flight before this one.

Here: features of one aircraft over its own flights. Not here: flights of other aircraft (`history`), and the last
landing (`features`). The source holds departures from New York alone, so the way back is taken to be as long as the
way out was scheduled.
"""

from datetime import timedelta

import polars as pl

from ml_assets.data.features.point_in_time import join_as_of
from ml_assets.defs.flights import history

NUMERIC = ("tail_behind", "turn_behind", "tail_out_delay", "turn_delay", "tail_since", "turn_slack")
"""Columns that `with_rotation` adds, in minutes."""

BEHIND_LIMITS = (-180, 180)
"""Three hours early are as good as a day early, and three hours late as bad as a day."""
SLACK_LIMITS = (-60, 240)
SINCE_LIMITS = (120, 720)
"""A departure that was known two hours before this one is at least that old."""
_HOLDS_UP = 360
"""An aircraft that should be back longer before than this is held up by nothing that its last flight met."""
_INSTANT = timedelta(microseconds=1)
_KEY = ("flight", "carrier", "origin")
"""Columns that tell two flights at one moment apart."""


def with_rotation(rows: pl.DataFrame, flights: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with `NUMERIC`, null for an aircraft without an earlier flight in 28 days.

    Both need the columns of `datasets/flights`; `rows` also `predicted_at` (UTC). `tail_…` follow from the newest
    departure known by then: its delay while it can hold this flight up, the minutes from it to this flight, and how far
    behind schedule the aircraft would be back. `turn_…` follow from the flight before this one in the timetable: the
    time between its return and this departure as scheduled, its delay so far (if it has not left, the time by which it
    should have), and the difference.
    """
    outward = flights.select(
        "tailnum",
        "departed_at",
        *(pl.col(name).alias(f"out_{name}") for name in _KEY),
        pl.col("scheduled_departure_at").alias("out_at"),
        (pl.col("scheduled_arrival_at") - pl.col("scheduled_departure_at")).alias("out_block"),
        pl.col("dep_delay").alias("out_delay"),
    )
    asked = rows.select(
        "tailnum",
        "predicted_at",
        "scheduled_departure_at",
        (pl.col("scheduled_departure_at") - _INSTANT).alias("before"),
    )
    newest = join_as_of(
        asked,
        outward,
        by=["tailnum"],
        at="predicted_at",
        event_at="departed_at",
        known_at="departed_at",
        tolerance=history.LONGEST,
        tiebreak=["out_at", *(f"out_{name}" for name in _KEY)],
    )
    planned = join_as_of(
        asked,
        outward,
        by=["tailnum"],
        at="before",
        event_at="out_at",
        known_at="out_at",  # the timetable was known long before
        tolerance=history.LONGEST,
        tiebreak=[f"out_{name}" for name in _KEY],  # the source has one aircraft twice at one moment
    )
    return pl.concat([rows, newest.select(_from_newest()), planned.select(_from_planned())], how="horizontal")


def _from_newest() -> list[pl.Expr]:
    left = pl.col("scheduled_departure_at") - pl.col("departed_at")
    behind = (2 * pl.col("out_block") - left).dt.total_minutes()
    delay = pl.col("out_delay").clip(*history.DELAY_LIMITS)
    return [
        behind.clip(*BEHIND_LIMITS).alias("tail_behind"),
        pl.when(behind > -_HOLDS_UP).then(delay).alias("tail_out_delay"),
        left.dt.total_minutes().clip(*SINCE_LIMITS).alias("tail_since"),
    ]


def _from_planned() -> list[pl.Expr]:
    slack = (pl.col("scheduled_departure_at") - pl.col("out_at") - 2 * pl.col("out_block")).dt.total_minutes()
    has_left = (pl.col("departed_at") <= pl.col("predicted_at")).fill_null(value=False)
    overdue = (pl.col("predicted_at") - pl.col("out_at")).dt.total_minutes().clip(lower_bound=0)
    delay = pl.when(has_left).then(pl.col("out_delay")).otherwise(overdue)
    return [
        slack.clip(*SLACK_LIMITS).alias("turn_slack"),
        delay.clip(*history.DELAY_LIMITS).alias("turn_delay"),
        (delay - slack).clip(*BEHIND_LIMITS).alias("turn_behind"),
    ]

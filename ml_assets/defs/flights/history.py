"""History of flights that share something with this one, over windows that end when it is predicted.

Here: which groups, windows and rates there are; all of them come from whole numbers, so that a range of days
gives the same bytes as its days one by one. Not here: how a window is computed (`features.rolling`).
"""

from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from ml_assets.data.features.rolling import window_sums

LONGEST = timedelta(days=28)
"""The longest window."""

DELAY_LIMITS = (-30, 180)
"""Minutes. One flight that is a day late says no more about the next than one that is three hours late."""

_WINDOWS = {f"{hours}h": timedelta(hours=hours) for hours in (1, 3, 6, 24)} | {
    "7d": timedelta(days=7),
    "28d": LONGEST,
}


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Flights that count together."""

    name: str
    by: tuple[str, ...]
    windows: tuple[str, ...]

    @property
    def lengths(self) -> dict[str, timedelta]:
        return {window: _WINDOWS[window] for window in self.windows}


@dataclass(frozen=True, kw_only=True)
class _Rate:
    """A mean over a group's flights, drawn towards what is usual while they are few."""

    column: str
    sums: str
    usual: float
    flights: int
    """Weight of `usual`: as if that many flights had gone that way."""

    def over(self, prefix: str) -> pl.Expr:
        total = pl.col(f"{prefix}_{self.sums}") + self.usual * self.flights
        return (total / (pl.col(f"{prefix}_n") + self.flights)).alias(f"{prefix}_{self.column}")


_ARRIVED = (
    _Group(name="carrier", by=("carrier",), windows=("6h", "24h", "7d", "28d")),
    _Group(name="dest", by=("dest",), windows=("6h", "24h", "7d", "28d")),
    _Group(name="origin", by=("origin",), windows=("6h",)),
    _Group(name="slot", by=("origin", "departure_hour"), windows=("7d", "28d")),
    _Group(name="number", by=("carrier", "flight", "origin"), windows=("7d", "28d")),
    _Group(name="tail", by=("tailnum",), windows=("7d", "28d")),
)
"""Groups whose past flights count from the time of landing."""
_ARRIVAL_RATES = (
    _Rate(column="late", sums="late", usual=0.2, flights=5),
    _Rate(column="delay", sums="delay", usual=5.0, flights=5),
)

_DEPARTED = (
    _Group(name="origin", by=("origin",), windows=("1h", "3h", "24h")),
    _Group(name="own", by=("carrier", "origin"), windows=("6h",)),
    _Group(name="dest", by=("dest",), windows=("6h",)),
)
"""Groups whose past flights count from the time of departure. `own`: the same carrier at the same airport."""
_DEPARTURE_RATES = (
    _Rate(column="left_late", sums="left_late", usual=0.2, flights=2),
    _Rate(column="departure_delay", sums="departure_delay", usual=10.0, flights=2),
)

_WAITING = (
    _Group(name="origin", by=("origin",), windows=("1h", "3h", "6h")),
    _Group(name="own", by=("carrier", "origin"), windows=("6h",)),
    _Group(name="dest", by=("dest",), windows=("3h", "6h")),
    _Group(name="carrier", by=("carrier",), windows=("3h", "6h")),
)
"""Flights scheduled in the window less flights that left in it: how far behind schedule an airport is before
any delay has been measured, since a flight that has not left has no delay yet."""

NUMERIC = (
    *(f"{g.name}_{w}_{rate.column}" for rate in _ARRIVAL_RATES for g in _ARRIVED for w in g.windows),
    *(f"{g.name}_{w}_{rate.column}" for rate in _DEPARTURE_RATES for g in _DEPARTED for w in g.windows),
    *(f"{g.name}_{w}_waiting" for g in _WAITING for w in g.windows),
)
"""Columns `with_history` adds for use as features."""


def with_history(rows: pl.DataFrame, flights: pl.DataFrame) -> pl.DataFrame:
    """`rows` with `NUMERIC`, from the facts of `flights` known at `predicted_at`.

    Both need the columns of `datasets/flights` and `departure_hour`; `rows` also `predicted_at` (UTC),
    `flights` also the booleans `late` and `left_late`.
    """
    arrivals = flights.select(
        *_keys(_ARRIVED), "landed_at", "late", pl.col("arr_delay").clip(*DELAY_LIMITS).alias("delay")
    )
    departures = flights.select(
        *_keys(_DEPARTED),
        "departed_at",
        "left_late",
        pl.col("dep_delay").clip(*DELAY_LIMITS).alias("departure_delay"),
    )
    added = [rows]
    for group in _ARRIVED:
        added.append(_rates(rows, arrivals, group, "landed_at", _ARRIVAL_RATES))
    for group in _DEPARTED:
        added.append(_rates(rows, departures, group, "departed_at", _DEPARTURE_RATES))
    for group in _WAITING:
        added.append(_waiting(rows, flights, group))
    return pl.concat(added, how="horizontal")


def _rates(
    rows: pl.DataFrame, facts: pl.DataFrame, group: _Group, known_at: str, rates: tuple[_Rate, ...]
) -> pl.DataFrame:
    sums = _sums(rows, facts, group, known_at, [rate.sums for rate in rates])
    return sums.select(rate.over(f"{group.name}_{window}") for window in group.windows for rate in rates)


def _waiting(rows: pl.DataFrame, flights: pl.DataFrame, group: _Group) -> pl.DataFrame:
    scheduled = _sums(rows, flights, group, "scheduled_departure_at", [])
    departed = _sums(rows, flights, group, "departed_at", [])
    return scheduled.select(
        (pl.col(name) - departed[name]).alias(f"{group.name}_{window}_waiting")
        for window in group.windows
        for name in [f"{group.name}_{window}_n"]
    )


def _sums(
    rows: pl.DataFrame, facts: pl.DataFrame, group: _Group, known_at: str, sums: list[str]
) -> pl.DataFrame:
    return window_sums(
        rows.select("predicted_at", *group.by),
        facts,
        by=group.by,
        at="predicted_at",
        known_at=known_at,
        sums=sums,
        windows=group.lengths,
        prefix=group.name,
    )


def _keys(groups: tuple[_Group, ...]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.by))

"""Rows of a partition that has not ended, guessed from the rows of the newest partitions.

They hold what names a row and nothing else, so a feature function sees of them what a prediction knows. They stay in
memory: no table of the lake gets a row that nobody observed. Not here: rows that a source already plans, and their
features (`context.prediction`).
"""

from calendar import monthrange
from collections.abc import Sequence
from datetime import date

import polars as pl

from ml_assets.data.tables.cadence import OF_MONTHS, Cadence
from resources.words import counted

SEEN = 7
"""Newest partitions with rows that decide which rows come."""
_PARTITION, _SINCE, _SEEN = "__partition", "__since", "__seen"


class ComingRowsUnknown(ValueError):
    """Earlier rows do not tell which rows a coming partition will have. The message says why."""


def coming_rows(
    past: Sequence[tuple[str, pl.DataFrame]],
    key: str,
    *,
    event_time: str,
    names: Sequence[str],
    cadence: Cadence,
    zone: str,
) -> pl.DataFrame:
    """Return `event_time` and `names` of each row that partition `key` will have if it is like those before it.

    `past` holds key and rows of the newest partitions that have rows, oldest first, at most `SEEN`. With dates, each
    thing that `names` name in the newest partition has a row. Moments (UTC) move by the clock of `zone`, and a row
    comes if half of the partitions have it. Raises `ComingRowsUnknown` for rows that do not repeat, such as orders.
    """
    if not past:
        raise ComingRowsUnknown("no earlier partition has a row")
    rows = pl.concat(
        frame.select(event_time, *names).with_columns(pl.lit(key).alias(_PARTITION)) for key, frame in past
    )
    if rows.select(event_time, *names).is_duplicated().any():
        raise ComingRowsUnknown(f"several rows have the same {' and '.join((event_time, *names))}")
    newest, _ = past[-1]
    if isinstance(rows.schema[event_time], pl.Datetime):
        return _moved_moments(rows, len(past), newest, key, event_time, names, cadence, zone)
    things = rows.filter(pl.col(_PARTITION) == newest)
    _require_repeated(rows, things, names)
    dates = _moved_dates(things[event_time].unique().sort().to_list(), newest, key, cadence)
    if dates is not None:
        return things.select(pl.col(event_time).replace_strict(dates, return_dtype=pl.Date), *names)
    first, last = cadence.bounds(key)
    days = pl.date_range(first, last, eager=True).alias(event_time).to_frame()
    return things.select(names).unique(maintain_order=True).join(days, how="cross") if names else days


def _require_repeated(rows: pl.DataFrame, things: pl.DataFrame, names: Sequence[str]) -> None:
    """Raise `ComingRowsUnknown` unless half of what the newest partition names was there before."""
    if not names or rows[_PARTITION].n_unique() < 2:
        return
    before = rows.join(things.select(_PARTITION).unique(), on=_PARTITION, how="anti")
    now = things.select(names).unique()
    again = now.join(before.select(names).unique(), on=names, how="semi", nulls_equal=True)
    if 2 * len(again) < len(now):
        raise ComingRowsUnknown(
            f"{counted(len(now) - len(again), 'row')} of {len(now)} have a {' and '.join(names)} that no earlier "
            "partition has, as events do"
        )


def _moved_dates(dates: Sequence[date], newest: str, key: str, cadence: Cadence) -> dict[date, date] | None:
    """Return date of partition `newest` → the date at the same place of partition `key`; None if each day has rows."""
    (old, last), (new, _) = cadence.bounds(newest), cadence.bounds(key)
    if cadence.kind not in OF_MONTHS:
        return {one: one + (new - old) for one in dates}
    if len({one.month for one in dates}) == len(dates):
        return {one: _in_month(new, one.month - old.month, one) for one in dates}
    if len(dates) < (last - old).days + 1:
        raise ComingRowsUnknown(f"the {len(dates)} dates of {newest} are neither one a month nor one a day")
    return None


def _in_month(first: date, months: int, day: date) -> date:
    """Return the day of the month of `day`, so many months after the month of `first`; last days stay last days."""
    month = first.replace(month=first.month + months)
    length = monthrange(month.year, month.month)[1]
    is_last = day.day == monthrange(day.year, day.month)[1]
    return month.replace(day=length if is_last else min(day.day, length))


def _moved_moments(
    rows: pl.DataFrame,
    partitions: int,
    newest: str,
    key: str,
    event_time: str,
    names: Sequence[str],
    cadence: Cadence,
    zone: str,
) -> pl.DataFrame:
    if cadence.kind not in ("daily", "weekly"):
        raise ComingRowsUnknown(f"rows of {cadence.kind} partitions have times of day")
    first = cadence.bounds(key)[0]
    local = pl.col(event_time).dt.convert_time_zone(zone).dt.replace_time_zone(None)
    begin = pl.col(_PARTITION).str.to_date().cast(pl.Datetime("us"))
    rows = rows.with_columns((local - begin).alias(_SINCE))
    seen = rows.group_by(_SINCE, *names).agg(pl.col(_PARTITION).n_unique().alias(_SEEN))
    found = seen.filter(2 * pl.col(_SEEN) >= partitions).sort(_SINCE, *names)
    size = rows.filter(pl.col(_PARTITION) == newest).height
    if 2 * len(found) < size or (partitions > 1 and (found[_SEEN] < 2).all()):
        raise ComingRowsUnknown(
            f"the times of day of {size} rows of {newest} do not repeat, as those of events"
        )
    # A clock that is set shows an hour twice or never: the first of the two counts, and the other has no row.
    moment = (pl.lit(first).cast(pl.Datetime("us")) + pl.col(_SINCE)).dt.replace_time_zone(
        zone, ambiguous="earliest", non_existent="null"
    )
    return (
        found.select(moment.dt.convert_time_zone("UTC").alias(event_time), *names)
        .drop_nulls(event_time)
        .unique(maintain_order=True)
    )

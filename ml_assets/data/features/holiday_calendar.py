"""Public holidays of a country as features of a day: each is known before the day begins.

The package `holidays`, which the extra of that name brings, has the calendars. It is imported at the first call. It
also has holidays that were announced a few days before, as if they had always been known. Not here: holidays that a
person keeps as a column of a file, which are a column known in advance.
"""

from collections.abc import Iterable
from datetime import date, timedelta
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl

HOLIDAY_COLUMNS = ("on_holiday", "days_to_holiday", "days_since_holiday")
"""Features of a day."""
FARTHEST = 14
"""Days from a holiday beyond which all distances are equal. In summer, Berlin has none for 136 days: distances that no
training had seen made the error of a small model half as large again."""


class CalendarUnknown(ValueError):
    """No country, or no part of one, has this name. The message has the remedy."""


def holidays_of(calendar: str, first: date, last: date) -> pl.DataFrame:
    """Return `partition_date`, from `first` to `last`, with `HOLIDAY_COLUMNS` (float32).

    `on_holiday` is 1 on a holiday and 0 on other days; the others are the days to the next holiday and since the last
    one, 0 on a holiday and at most `FARTHEST`. `calendar` is the code of a country by ISO 3166, such as `US`, or of a
    part of it, such as `US-CA`. Raises `CalendarUnknown`, and `ModuleNotFoundError` without the extra.
    """
    days = pl.date_range(first, last, eager=True).alias("partition_date")
    numbers = days.to_physical().to_numpy().astype(np.int64)
    known = _known(calendar, range(first.year - 1, last.year + 2))
    # A day beyond each end, so that each day has a holiday before it and after it.
    known = np.concatenate([[numbers[0] - FARTHEST], known, [numbers[-1] + FARTHEST]])
    known.sort()
    to_next = known[np.searchsorted(known, numbers)] - numbers
    since_last = numbers - known[np.searchsorted(known, numbers, side="right") - 1]
    values = (to_next == 0, np.minimum(to_next, FARTHEST), np.minimum(since_last, FARTHEST))
    features = pl.DataFrame(dict(zip(HOLIDAY_COLUMNS, values, strict=True))).cast(pl.Float32)
    return features.select(days, *HOLIDAY_COLUMNS)


def _known(calendar: str, years: range) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the days since 1970 of all holidays in `years`, ascending."""
    package: Any = import_module("holidays")
    country, dash, part = calendar.partition("-")
    countries: dict[str, list[str]] = package.list_supported_countries()
    if country not in countries:
        near = calendar.upper() if country.upper() in countries else "US or DE"
        raise CalendarUnknown(
            f"'{country}' is not the code of a country with a calendar: write it as in {near}"
        )
    if dash and part not in countries[country]:
        parts = ", ".join(countries[country])
        remedy = f"choose among {parts}, or write {country} alone" if parts else f"write {country} alone"
        raise CalendarUnknown(f"{country} has no part '{part}' with holidays of its own: {remedy}")
    found: Iterable[date] = package.country_holidays(country, subdiv=part or None, years=years)
    epoch = date(1970, 1, 1)
    return np.array(sorted((day - epoch) // timedelta(days=1) for day in found), dtype=np.int64)

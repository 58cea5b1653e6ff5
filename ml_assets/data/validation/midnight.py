"""Moments at which days and hours begin and end. Standard library only.

A day is a `date`. An hour is the moment (UTC) at which it begins, a `datetime`.
"""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

HOUR = timedelta(hours=1)


def midnight(day: date, zone: str) -> datetime:
    """Return the first moment (UTC) of `day` in `zone`.

    If clocks skip midnight, as in Cairo in spring, the day begins at the skip. If midnight comes twice, the day begins
    at the first.
    """
    # For a time that clocks skip, Python uses the earlier offset. At midnight this gives the moment of the skip.
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)


def begin_of(first: date, zone: str) -> datetime:
    """Return the first moment (UTC) of a day in `zone`, or of an hour."""
    return first.astimezone(UTC) if isinstance(first, datetime) else midnight(first, zone)


def after(last: date) -> date:
    """Return the day after a day, or the hour after an hour."""
    return last + (HOUR if isinstance(last, datetime) else timedelta(days=1))


def iso_name(first: date) -> str:
    """Return the name of a day or hour: `2024-03-08`, `2024-03-08T05`."""
    # Not by strftime, which writes the year 999 with three digits.
    return f"{first.date()}T{first.hour:02}" if isinstance(first, datetime) else first.isoformat()

"""The moment a day begins in a time zone. Standard library only."""

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo


def midnight(day: date, zone: str) -> datetime:
    """Return the first moment (UTC) of `day` in `zone`.

    Where clocks skip midnight, as in Cairo in spring, the day begins with the skip; where midnight comes twice, with
    the first.
    """
    # Of a time that clocks skip, Python takes the offset from before: at midnight that is the moment of the skip.
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)

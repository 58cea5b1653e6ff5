"""The moment a day begins in a time zone. Standard library only."""

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo


def midnight(day: date, zone: str) -> datetime:
    """Return the first moment (UTC) of `day` in `zone`.

    If clocks skip midnight, as in Cairo in spring, the day begins at the skip. If midnight comes twice, the day begins
    at the first.
    """
    # For a time that clocks skip, Python uses the earlier offset. At midnight this gives the moment of the skip.
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)

"""Clocks of servers beside the clock of this process: who is how far apart, and which clock to set.

Here: the time that an HTTP server tells, and the sentence about differences. Not here: requests with credentials.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

TOLERANCE = timedelta(minutes=5)
"""Clocks of the hosts of one network differ by seconds. A larger difference is a wrong clock."""


def behind_http_server(url: str, seconds: float) -> timedelta | None:
    """Return by how much this process is behind the server, negative if it is ahead, to the second.

    None if the server does not answer within `seconds`, or tells no time. The request has no credentials: an answer
    that denies access has the time, too.
    """
    import urllib3

    began = datetime.now(UTC)
    try:
        answer = urllib3.request("HEAD", url, timeout=seconds, retries=False, redirect=False)
    except urllib3.exceptions.HTTPError:
        return None
    told = time_told(answer.headers)
    return None if told is None else told - (began + (datetime.now(UTC) - began) / 2)


def time_told(headers: Mapping[str, str]) -> datetime | None:
    """Return the time, UTC, of the header `Date` of an answer; None without one, or if it is not a date."""
    try:
        # A header is in UTC, whatever some servers write for it.
        return parsedate_to_datetime(headers.get("Date", "")).replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def why_wrong(behind: Mapping[str, timedelta]) -> str:
    """Return a sentence on the clocks that differ from this one by more than `TOLERANCE`; empty if there are none.

    `behind`: name of the other clock → by how much this one is behind it.
    """
    wrong = {name: one for name, one in behind.items() if abs(one) > TOLERANCE}
    if not wrong:
        return ""
    others = "; ".join(
        f"{name} is {in_words(abs(one))} {'ahead' if one > timedelta() else 'behind'}"
        for name, one in wrong.items()
    )
    # If all others agree, this clock is the wrong one.
    whose = "of this machine" if len(wrong) == len(behind) > 1 else "that is wrong"
    return (
        f"the clock of this machine says {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, and {others}. Set the clock "
        f"{whose} (NTP): S3 refuses requests dated wrong by 15 minutes, and times of decisions and steps would be wrong"
    )


def in_words(span: timedelta) -> str:
    """Return a span of minutes or more."""
    minutes = round(span / timedelta(minutes=1))
    return f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"

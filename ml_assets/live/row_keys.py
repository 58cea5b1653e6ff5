"""Values of a primary key as text: one text for a value in a feature table, and for the same value in a request's JSON.

Here: the text alone. Not here: which columns are the key (`PipelineSpec.features`).
"""

from datetime import UTC, date, datetime

_MIDNIGHT = "T00:00:00+00:00"


def key_text(value: object) -> str | None:
    """Return the text of a value; None for null.

    A number that is whole has no point. A moment is in UTC, ISO 8601, and the midnight that begins a day is the date of
    that day: `2013-12-03`, `2013-12-03T00:00:00` and `2013-12-03T00:00:00Z` are one value.
    """
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return str(int(value))
        case datetime():
            moment = (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
            return moment.removesuffix(_MIDNIGHT)
        case date():
            return value.isoformat()
        case str():
            return _moment(value) or value
        case _:
            return str(value)


def _moment(text: str) -> str | None:
    """Return a time in JSON as the text of that time; None if `text` is not a time."""
    if len(text) <= len("2026-11-23") or "-" not in text:
        return None
    try:
        return key_text(datetime.fromisoformat(text))
    except (ValueError, OverflowError):  # years 1 and 9999 have no UTC in every zone
        return None

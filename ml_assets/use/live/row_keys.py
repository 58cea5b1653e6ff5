"""Values of a primary key as text: one text for a value in a feature table, and for the same value in a request's JSON.

A text stays as it is: only a column of dates or times says that a text is a time (`time_text`). Not here: which columns
are the key (`PipelineSpec.features`).
"""

from datetime import UTC, date, datetime

_MIDNIGHT = "T00:00:00+00:00"


def key_text(value: object) -> str | None:
    """Return the text of a value; None for null.

    A number that is whole has no point. A moment is in UTC, ISO 8601, and the midnight that begins a day is the date of
    that day.
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
            return value
        case _:
            return str(value)


def time_text(sent: str | None) -> str | None:
    """Return the `key_text` of the date or time that a request sent as text; the text itself if it is not a time.

    `2013-12-03`, `2013-12-03T00:00:00` and `2013-12-03T00:00:00Z` are one value of a column of dates or times.
    """
    if sent is None:
        return None
    try:
        return key_text(datetime.fromisoformat(sent))
    except (ValueError, OverflowError):  # years 1 and 9999 have no UTC in every zone
        return sent

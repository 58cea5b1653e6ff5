"""Small worlds for as-of joins and windows: few keys, few moments, so that ties and gaps are common."""

from datetime import UTC, datetime, timedelta

import polars as pl
from hypothesis import strategies as st

START = datetime(2024, 1, 1, tzinfo=UTC)
MOMENT = pl.Datetime("us", "UTC")

keys = st.none() | st.sampled_from(["a", "b", "c"])
hours = st.none() | st.integers(0, 12)


def at_hour(hour: int | None) -> datetime | None:
    """A moment so many hours after the start."""
    return None if hour is None else START + timedelta(hours=hour)


def asked(rows: list[tuple[str | None, int | None]]) -> pl.DataFrame:
    """Rows with a key and the moment they ask about."""
    return pl.DataFrame(
        {"key": [key for key, _ in rows], "at": [at_hour(hour) for _, hour in rows]},
        schema={"key": pl.String, "at": MOMENT},
    )


def facts(rows: list[tuple[str | None, int | None, int]]) -> pl.DataFrame:
    """Facts with a key, the moment they became known, and a value."""
    return pl.DataFrame(
        {
            "key": [key for key, _, _ in rows],
            "known_at": [at_hour(hour) for _, hour, _ in rows],
            "value": [value for _, _, value in rows],
        },
        schema={"key": pl.String, "known_at": MOMENT, "value": pl.Int64},
    )


def events(rows: list[tuple[str | None, int | None, int | None, int]]) -> pl.DataFrame:
    """Facts with a key, the moment they happened, the moment they became known, and a value."""
    return pl.DataFrame(
        {
            "key": [key for key, *_ in rows],
            "happened_at": [at_hour(hour) for _, hour, _, _ in rows],
            "known_at": [at_hour(hour) for _, _, hour, _ in rows],
            "value": [value for *_, value in rows],
        },
        schema={"key": pl.String, "happened_at": MOMENT, "known_at": MOMENT, "value": pl.Int64},
    )

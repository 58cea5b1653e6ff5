"""The sales as an hourly table: its hours, and what main must hold, for the tests of every kind of source."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from ml_assets.data.sources.protocol import Span
from ml_assets_tests.components.installation import Installation, failure_of
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows

FIRST = datetime(2024, 3, 8, 5, tzinfo=UTC)
"""Hour of the first sale: midnight in New York."""
LAST = datetime(2024, 3, 13, 3, tzinfo=UTC)
HOURS = [FIRST + timedelta(hours=n) for n in range(int((LAST - FIRST) / timedelta(hours=1)) + 1)]
HOURLY: dict[str, Any] = {
    "partitions": {"cadence": "hourly", "start": "2024-03-08", "end": "2024-03-13"},
    "contract": {name: value for name, value in DATASET["contract"].items() if name != "event_time_zone"},
}
"""Changes of the declaration of the sales."""


def rows_of(hour: datetime) -> pl.DataFrame:
    """Return the sales of an hour of UTC."""
    return rows(*DAYS).filter(pl.col("sold_at").dt.truncate("1h") == hour)


def span_of(hour: datetime) -> Span:
    """Return the time of an hour."""
    return Span(hour, hour + timedelta(hours=1))


def require_every_hour(installation: Installation) -> None:
    """Materialize all hours in one run. Fail unless main then holds the rows of each, bit for bit."""
    first, *_, last = keys = [f"{hour:%Y-%m-%dT%H}" for hour in HOURS]
    result = installation.run(SALES, partition=first, last=last)
    assert result.success, failure_of(result)
    assert installation.main.keys(SALES) == keys
    for key, hour in zip(keys, HOURS, strict=True):
        assert installation.main.scan(SALES, [key]).collect().equals(rows_of(hour)), key

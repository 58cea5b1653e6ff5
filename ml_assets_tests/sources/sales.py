"""Sales of a shop, a few rows a day in New York: the rows and the declaration that the tests of sources share.

A function named by `source.function` returns what a test planted in `ANSWERS`.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import yaml

FIRST = date(2024, 3, 8)
"""Two days before summer time begins in New York."""
DAYS = [(FIRST + timedelta(days=n)).isoformat() for n in range(5)]
SALES = "datasets/sales"

ANSWERS: dict[str, Callable[[], Any]] = {}
"""Day → the answer of `read` on it; a day that is not among them is answered with its rows."""


def rows(*days: str) -> pl.DataFrame:
    """Return the rows of these days. An hour before and after midnight of New York is among them."""
    frames: list[pl.DataFrame] = []
    for day in days:
        number = date.fromisoformat(day).toordinal()
        local = [datetime.fromisoformat(f"{day}T{time}") for time in ("00:00:00", "12:30:00", "23:59:59")]
        frames.append(
            pl.DataFrame(
                {
                    "sale": [3 * number + n for n in range(3)],
                    "sold_at": pl.Series(local)
                    .dt.replace_time_zone("America/New_York")
                    .dt.convert_time_zone("UTC"),
                    "product": ["tea", "coffee", "Größe L"],
                    "units": pl.Series([1, 2, None], dtype=pl.Int16),
                    "price": [1.5, 0.1 + number, -0.0],
                    "gift": [True, False, None],
                    "changed_at": [
                        datetime(2024, 4, 1, tzinfo=UTC)
                        + timedelta(days=number - FIRST.toordinal(), seconds=n)
                        for n in range(3)
                    ],
                },
                schema_overrides={
                    "sold_at": pl.Datetime("us", "UTC"),
                    "changed_at": pl.Datetime("us", "UTC"),
                },
            )
        )
    return pl.concat(frames)


def read(day: date) -> Any:
    """Return the planted answer of a day, or its rows."""
    key = day.isoformat()
    return ANSWERS[key]() if key in ANSWERS else rows(key)


DATASET: dict[str, Any] = {
    "name": "sales",
    "partitions": {"cadence": "daily", "start": DAYS[0], "end": DAYS[-1]},
    "volume": "off",
    "contract": {
        "primary_key": ["sale"],
        "event_time": "sold_at",
        "event_time_zone": "America/New_York",
        "columns": [
            {"name": "sale", "dtype": "int64"},
            {"name": "sold_at", "dtype": "datetime"},
            {"name": "product", "dtype": "string"},
            {"name": "units", "dtype": "int16", "nullable": True},
            {"name": "price", "dtype": "float64"},
            {"name": "gift", "dtype": "bool", "nullable": True},
            {"name": "changed_at", "dtype": "datetime"},
        ],
    },
}


def declared_in(folder: Path, **datasets: dict[str, Any]) -> None:
    """Write a `defs.yaml` for each name below `folder`: the declaration of the sales with these changes.

    An attribute that becomes None is left out.
    """
    for name, changes in datasets.items():
        attributes = {key: value for key, value in (DATASET | changes).items() if value is not None}
        declared = {"type": "ml_assets.components.Dataset", "attributes": attributes | {"name": name}}
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "defs.yaml").write_text(yaml.safe_dump(declared))

"""The source of datasets/parcels. Synthetic: some days have what a real source has on some days."""

from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import polars as pl

COUNTERS = ["east", "north", "west"]
ROWS = 40
TOO_HEAVY = date(2024, 1, 5)
"""A scale was broken: one weight breaks the contract, and its row goes into quarantine."""
NEW_COUNTER = date(2024, 1, 8)
"""A counter opened that the contract does not know: more rows than quarantine takes, so the day is rejected."""
LAST_DAY = date(2024, 1, 31)


def read(day: date) -> pl.DataFrame:
    """Return the rows of one day (UTC), the same each time."""
    draw = np.random.default_rng([3, day.toordinal()])
    counter = draw.integers(len(COUNTERS), size=ROWS)
    weight = np.round(draw.uniform(0.1, 30, size=ROWS), 1)
    if day == TOO_HEAVY:
        weight[7] = 400.0
    hour = np.sort(draw.uniform(0, 24, size=ROWS))
    late = draw.random(ROWS) < 1 / (1 + np.exp(2 - counter - 0.05 * weight))
    midnight = datetime.combine(day, time(), UTC)
    return pl.DataFrame(
        {
            "id": day.toordinal() * 1000 + np.arange(ROWS),
            "handed_in_at": [midnight + timedelta(hours=float(h)) for h in hour],
            "counter": ["south" if day == NEW_COUNTER and i == 0 else COUNTERS[i] for i in counter],
            "weight": weight,
            "late": late,
            "arrived_at": [midnight + timedelta(hours=float(h)) for h in hour + draw.uniform(1, 10, ROWS)],
        },
        schema_overrides={
            "handed_in_at": pl.Datetime("us", "UTC"),
            "arrived_at": pl.Datetime("us", "UTC"),
        },
    )


def latest() -> date:
    """Return the latest complete day of the source."""
    return LAST_DAY

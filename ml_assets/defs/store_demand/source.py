"""The source system: a shop chain that reports each week's sales when the week is over. Synthetic, seeded."""

from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import polars as pl

STORES = [f"store_{n:02d}" for n in range(12)]
PRODUCTS = ["apples", "bread", "coffee", "milk", "paper", "soap"]
FIRST_WEEK = date(2023, 1, 2)
LAST_WEEK = date(2024, 6, 24)


def read_sales(week: date) -> pl.DataFrame:
    """Sales of the week that starts on Monday `week`: one row per store and product.

    `closed_at` (UTC) is when the figures became known: the end of the week. The same week always gives
    the same rows.
    """
    number = (week - FIRST_WEEK).days // 7
    draw = np.random.default_rng([17, number])
    store_level = np.linspace(0.6, 1.8, len(STORES))
    product_level = np.array([120.0, 200.0, 60.0, 180.0, 40.0, 30.0])
    phase = np.arange(len(PRODUCTS)) * 2 * np.pi / len(PRODUCTS)
    season = 1 + 0.35 * np.sin(2 * np.pi * number / 52 + phase)
    promotion = draw.random((len(STORES), len(PRODUCTS))) < 0.15
    price = np.round(draw.uniform(0.9, 1.1, (len(STORES), len(PRODUCTS))), 3)
    expected = store_level[:, None] * product_level * season * np.where(promotion, 1.5, 1.0) * price**-1.5
    units = draw.poisson(expected)
    return pl.DataFrame(
        {
            "week": [week] * units.size,
            "store": np.repeat(STORES, len(PRODUCTS)),
            "product": PRODUCTS * len(STORES),
            "promotion": promotion.ravel(),
            "price": price.ravel(),
            "units": units.ravel().astype(np.int32),
            "closed_at": [datetime.combine(week + timedelta(days=7), time(), UTC)] * units.size,
        }
    )


def latest() -> date:
    """The latest day the source is done with: the Sunday of its last week."""
    return LAST_WEEK + timedelta(days=6)

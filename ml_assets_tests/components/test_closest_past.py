"""The earlier label from which a scaffolded network learns the difference."""

import math
from collections.abc import Callable
from datetime import date, timedelta

import polars as pl
import pytest

from ml_assets.components.scaffold.closest_past import closest_past
from ml_assets.components.scaffold.units import UNITS

DAYS = [date(2024, 1, 1) + timedelta(days=n) for n in range(200)]


def _closest(sold: Callable[[int], float], days: int = 200, season: tuple[int, ...] = (7, 14)) -> str:
    frame = pl.DataFrame(
        {
            "day": [day for day in DAYS[:days] for _ in range(2)],
            "shop": ["a", "b"] * days,
            "sold": [sold(n) + 1000 * shop for n in range(days) for shop in range(2)],
        }
    )
    return closest_past(
        frame,
        "sold",
        starts=frame["day"],
        series=["shop"],
        unit=UNITS["daily"],
        recent=(1, 2, 3),
        season=season,
        before=DAYS[150],
    )


@pytest.mark.parametrize(
    ("sold", "closest"),
    [
        (lambda n: 3.0 * n, "sold_last"),
        (lambda n: 100.0 * (n % 7), "sold_7d"),
        (lambda n: 100.0 * (n % 7) + 9 * math.sin(n * n), "sold_season"),  # a mean has less of the noise
        (lambda n: 100.0 * (n % 7) if n >= 150 else 3.0 * n, "sold_last"),  # what comes later does not decide
        (lambda n: 5.0, "sold_last"),
    ],
)
def test_the_closest_on_training_rows_is_chosen(sold: Callable[[int], float], closest: str) -> None:
    assert _closest(sold) == closest


def test_few_rows_and_no_season_leave_the_last_value() -> None:
    def weekly(n: int) -> float:
        return 100.0 * (n % 7)

    assert _closest(weekly, days=15) == "sold_last"
    assert _closest(weekly, season=()) == "sold_last"

"""The real ratings, read once per test process."""

from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl
import pytest

from ml_assets.defs.search_ranking import source

DAYS = [date(1997, 9, 20) + timedelta(days=i) for i in range(215)]


@pytest.fixture(scope="session")
def ratings_by_day() -> Mapping[str, pl.DataFrame]:
    """Partition key → ratings, as ingested."""
    return {str(day): source.read_ratings(day) for day in DAYS}


@pytest.fixture(scope="session")
def tables(ratings_by_day: Mapping[str, pl.DataFrame]) -> Mapping[str, pl.DataFrame]:
    """All inputs of the feature function, whole."""
    return {
        "datasets/ratings": pl.concat(ratings_by_day.values()),
        "datasets/films": source.read_films(),
        "datasets/users": source.read_users(),
    }

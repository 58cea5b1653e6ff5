"""Features of real pages: the same however they are built, and blind to what came later."""

import io
from collections.abc import Callable, Mapping
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from ml_assets.data.features.cut_and_rebuild import Alone, LeakReport, leak_test
from ml_assets.data.tables.user_code import building
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.contract import schema_drift
from ml_assets.defs.search_ranking import features
from ml_assets.defs.search_ranking.features import LOOKBACK_DAYS
from ml_assets_tests.defs.search_ranking import ranking_specs

film_pages = building(features.film_pages)
Inputs = Mapping[str, pl.DataFrame]
FIRST, LAST = date(1997, 11, 15), date(1997, 11, 17)
"""Saturday to Monday, so that a new week of similar films begins."""


def stored(rows: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    rows.write_parquet(file, row_group_size=122_880)
    return file.getvalue()


def test_a_range_has_the_bytes_of_its_days_built_one_by_one(tables: Inputs) -> None:
    together = film_pages(until(tables, LAST), FIRST, LAST)
    for day in (FIRST, FIRST + timedelta(days=1), LAST):
        alone = film_pages(until(tables, day), day, day)
        assert stored(together.filter(pl.col("partition_date") == day)) == stored(alone)
        assert alone.height > 500


def test_the_order_of_input_rows_changes_nothing(tables: Inputs) -> None:
    shuffled = {name: rows.sample(fraction=1.0, shuffle=True, seed=3) for name, rows in tables.items()}
    assert film_pages(shuffled, LAST, LAST).equals(film_pages(tables, LAST, LAST))


@pytest.mark.nightly
def test_every_day_of_features_keeps_the_contract(tables: Inputs) -> None:
    spec = ranking_specs.film_pages()
    rows = film_pages(tables, date(1997, 9, 20), date(1998, 4, 22))
    assert not schema_drift(spec.contract, rows)
    assert list(spec.contract.names) == rows.columns, "stored in the order the function gives"
    days = {str(key[0]): part for key, part in rows.partition_by("partition_date", as_dict=True).items()}
    bounds = {day: (date.fromisoformat(day),) * 2 for day in days}
    found = check_partitions(days, spec.contract, bounds=bounds)
    assert [finding for findings in found.values() for finding in findings] == []
    lists = rows.group_by("page").agg(
        pl.len(), pl.col("user_id", "partition_date", "predicted_at", "label_known_at").n_unique()
    )
    assert lists["len"].min() == features.FEWEST
    assert lists.drop("page", "len").max().row(0) == (1, 1, 1, 1)


def test_the_lookback_is_the_whole_source() -> None:
    ratings = ranking_specs.dataset("ratings")
    (lookback,) = [
        one.lookback for one in ranking_specs.film_pages().inputs if one.table == "datasets/ratings"
    ]
    assert lookback == LOOKBACK_DAYS == (ratings.partitions.end - ratings.partitions.start).days


def test_a_new_user_has_no_taste_and_a_new_film_the_usual_mean(tables: Inputs) -> None:
    first = tables["datasets/ratings"].sort("rated_at").row(0, named=True)
    rows = film_pages(tables, first["rating_date"], first["rating_date"]).filter(
        pl.col("page") == first["page"]
    )
    assert rows.select("genre_taste", "decade_taste", "neighbours", "user_count").unique().row(0) == (
        0,
        0,
        0,
        0,
    )
    assert rows.select("film_mean", "sex_mean", "user_mean").unique().row(0) == (3.5, 3.5, 3.5)


def test_similar_films_tell_what_a_user_will_like(tables: Inputs) -> None:
    """On the pages of a month, the score of liked films is higher than that of the others."""
    rows = film_pages(tables, date(1998, 1, 1), date(1998, 1, 31)).filter(pl.col("user_count") > np.log(20))
    above = rows["neighbours"] - rows.select(pl.col("neighbours").mean().over("page")).to_series()
    liked = above.filter(rows["relevance"] > 0).mean()
    others = above.filter(rows["relevance"] == 0).mean()
    assert isinstance(liked, float)
    assert isinstance(others, float)
    assert liked - others > 0.01


def until(tables: Inputs, last: date) -> Inputs:
    """Exactly the rows that the platform reads to build partitions up to `last`."""
    ratings = tables["datasets/ratings"].filter(pl.col("rating_date") <= last)
    return {**tables, "datasets/ratings": ratings}


def examine(tables: Inputs, build: Callable[[Inputs, date, date], pl.DataFrame]) -> LeakReport:
    """Run the leakage check over two days, with the declarations of `defs.yaml`."""
    spec = ranking_specs.film_pages()
    first = LAST - timedelta(days=1)
    inputs = until(tables, LAST)
    return leak_test(
        build,
        inputs,
        {section.table: section.known_at for section in spec.inputs},
        first,
        LAST,
        primary_key=spec.contract.primary_key,
        labels=spec.labels,
        cuts=1,
        alone=[Alone(key=str(LAST), first=LAST, last=LAST, inputs=inputs)],
    )


def test_nothing_of_the_future_is_in_the_features(tables: Inputs) -> None:
    report = examine(tables, film_pages)
    assert report.ok, report.explain()
    assert report.rows_compared > 500
    assert set(features.NUMERIC) < set(report.columns_compared)


def test_a_mean_that_knows_the_page_itself_is_caught(tables: Inputs) -> None:
    def leaky(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        rows = film_pages(inputs, first, last)
        return rows.with_columns(pl.col("relevance").mean().over("film_id").alias("liked_that_day"))

    assert {leak.column for leak in examine(tables, leaky).leaks} == {"liked_that_day"}

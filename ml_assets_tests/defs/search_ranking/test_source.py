"""Ratings, films and users as the source reads them, and the contracts that they keep."""

import subprocess
import sys
from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl

from ml_assets.data.validation.check import check_partitions
from ml_assets.defs.search_ranking import source
from ml_assets_tests.defs.search_ranking.ranking_specs import dataset

Days = Mapping[str, pl.DataFrame]


def test_the_days_hold_all_ratings_once(ratings_by_day: Days) -> None:
    ratings = pl.concat(ratings_by_day.values())
    assert ratings.height == 100_000
    assert not ratings.select("user_id", "film_id").is_duplicated().any()
    assert source.latest() == date(1998, 4, 22)
    assert {day for day, rows in ratings_by_day.items() if rows.is_empty()} == {"1997-12-11", "1997-12-16"}


def test_a_day_without_ratings_has_the_columns(ratings_by_day: Days) -> None:
    empty = source.read_ratings(date(1999, 1, 1))
    assert empty.is_empty()
    assert empty.schema == ratings_by_day["1998-04-22"].schema


def test_every_table_keeps_its_contract(ratings_by_day: Days) -> None:
    days = {day: (date.fromisoformat(day),) * 2 for day in ratings_by_day}
    found = check_partitions(ratings_by_day, dataset("ratings").contract, bounds=days)
    assert [finding for findings in found.values() for finding in findings] == []
    for name, table in (("films", source.read_films()), ("users", source.read_users())):
        assert check_partitions({"all": table}, dataset(name).contract) == {"all": []}


def test_films_have_quotation_marks_and_two_have_no_year() -> None:
    films = source.read_films()
    assert films.height == 1682
    assert films.filter(pl.col("release_year").is_null())["film_id"].to_list() == [267, 1412]


def test_pages_follow_each_other_and_begin_before_their_ratings(ratings_by_day: Days) -> None:
    ratings = pl.concat(ratings_by_day.values())
    pages = ratings.group_by("page").agg(
        pl.len().alias("rows"),
        pl.col("user_id").n_unique().alias("users"),
        pl.col("shown_at").n_unique().alias("moments"),
        pl.first("shown_at"),
        pl.col("rated_at").min().alias("first"),
        pl.col("rated_at").max().alias("last"),
        pl.first("user_id"),
        pl.first("rating_date"),
    )
    assert pages["rows"].max() == source.PAGE
    assert pages.select(pl.col("users", "moments").max()).row(0) == (1, 1)
    assert (pages["first"] - pages["shown_at"]).unique().to_list() == [timedelta(seconds=1)]
    following = pages.sort("page").filter(
        pl.col("last").shift().over("user_id", "rating_date", order_by="page") > pl.col("first")
    )
    assert following.is_empty(), "a page begins when the page before it is rated"


def test_the_package_of_the_data_is_read_and_not_imported() -> None:
    """Its dependencies are not installed, so an import would fail."""
    code = (
        "import sys; from ml_assets.defs.search_ranking import source; "
        "print(source.read_users().height, 'recbole' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["943", "False"]

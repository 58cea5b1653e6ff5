"""The source system: MovieLens-100K, 100,000 ratings of films by 943 users from September 1997 to April 1998.

Here: reading the files of the package `recbole` in place, and the pages of each day. The terms of MovieLens forbid
redistribution, so no file of this project has rows of it. Not here: what follows from several pages (`features`).

The data has no search results, so a page stands for one: the next films that a user rated on a day, 20 at a time. The
user chose them, and the ratings tell in which order they should have been. Lists of a user's day or week would leave no
taste to learn from: most users came once, and rated 100 films within an hour. Moments and days are UTC.
"""

from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path

import polars as pl

from ml_assets.defs.package_files import package_folder

PAGE = 20
"""Films of a full page; the last page of a user's day has fewer."""

_FOLDER = Path("dataset_example") / "ml-100k"
_USER_TYPES = {
    "user_id": pl.Int32,
    "age": pl.Int8,
    "gender": pl.String,
    "occupation": pl.String,
    "zip_code": pl.String,
}
_FILM_TYPES = {"item_id": pl.Int32, "movie_title": pl.String, "release_year": pl.String, "class": pl.String}
_RATING_TYPES = {"user_id": pl.Int32, "item_id": pl.Int32, "rating": pl.Int8, "timestamp": pl.Int64}


def read_ratings(day: date) -> pl.DataFrame:
    """Ratings of that day (UTC): user, film, 1 to 5 stars, and the page; no rows on a day without ratings.

    `page` names the page, such as `42-1997-11-13-03`. `shown_at` is a second before its first rating: the other pages
    of the user, and all ratings known then, came before it.
    """
    days = _ratings_by_day()
    return days[day] if day in days else next(iter(days.values())).clear()


def read_films() -> pl.DataFrame:
    """Films: title, year of release (null for two films) and genres."""
    films = _read("item", _FILM_TYPES)
    return films.select(
        pl.col("item_id").alias("film_id"),
        pl.col("movie_title").alias("title"),
        pl.col("release_year").cast(pl.Int16, strict=False),  # "V" and "unkonwn" are no years
        pl.col("class").alias("genres"),
    )


def read_users() -> pl.DataFrame:
    """Users: age, sex and occupation, as they said when they registered."""
    users = _read("user", _USER_TYPES)
    return users.select("user_id", "age", pl.col("gender").alias("sex"), "occupation")


def latest() -> date:
    """The latest day the source can hand out."""
    return max(_ratings_by_day())


@cache
def _ratings_by_day() -> Mapping[date, pl.DataFrame]:
    rated_at = pl.from_epoch("timestamp", "s").cast(pl.Datetime("us", "UTC")).alias("rated_at")
    ratings = (
        _read("inter", _RATING_TYPES)
        .with_columns(rated_at)
        .with_columns(pl.col("rated_at").dt.date().alias("rating_date"))
        .sort("rating_date", "user_id", "rated_at", "item_id")
    )
    number = pl.int_range(pl.len()).over("rating_date", "user_id") // PAGE + 1
    page = pl.format("{}-{}-{}", "user_id", "rating_date", number.cast(pl.String).str.zfill(2)).alias("page")
    rows = ratings.with_columns(page).select(
        "rating_date",
        "user_id",
        pl.col("item_id").alias("film_id"),
        "page",
        (pl.col("rated_at").min().over("page") - pl.duration(seconds=1)).alias("shown_at"),
        "rated_at",
        "rating",
    )
    return {key[0]: day for key, day in rows.partition_by("rating_date", as_dict=True).items()}


def _read(part: str, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Read a file with tab-separated columns, whose headers are `name:type`. Titles have quotation marks as text."""
    return pl.read_csv(
        package_folder("recbole") / _FOLDER / f"ml-100k.{part}",
        separator="\t",
        quote_char=None,
        new_columns=list(types),
        schema_overrides=dict(types),
    )

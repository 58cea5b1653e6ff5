"""Features of `search_ranking`: knowledge of a film and a user at the time when a page was shown to the user.

Here: one pure function over tables of the lake, and the names of what it adds. Not here: similar films (`taste`).

Known when: films and users long before; a rating at `rated_at`. Ratings are read only through windows that end at
`shown_at`, a second before the first rating of the page.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import polars as pl

from ml_assets.data.features.rolling import window_sums
from ml_assets.defs.search_ranking.taste import SCORES, with_neighbours

FEWEST = 5
"""Films of a page that is ranked: of fewer, nearly every order puts the best ones among the first."""

NUMERIC = (
    "film_count",
    "film_month_count",
    "film_mean",
    "film_month_mean",
    "film_age",
    "sex_mean",
    "age_group_mean",
    "occupation_mean",
    "user_count",
    "user_mean",
    "genre_taste",
    "decade_taste",
    "genre_count",
    *SCORES,
)
"""Numeric features, float32, in stored order. Means are in stars, tastes in stars above the user's mean."""

GROUPS = ("sex", "age_group", "occupation")
"""Columns of the users, by which slices are measured. The model sees them through the means of such users."""

LOOKBACK_DAYS = 214
"""Days of ratings needed before the first day asked for: all days of the source. `lookback` in defs.yaml."""

_EVER = timedelta(days=LOOKBACK_DAYS + 1)
_MONTH = timedelta(days=28)
_NOT_LIKED = 3
"""Stars up to which a film was not liked."""
_STARS = 3.5
"""Mean of all ratings, in stars: the prior of a film nobody has rated."""
_FILM_PRIOR, _GROUP_PRIOR, _TASTE_PRIOR = 5, 10, 5
"""Ratings at which a mean counts half against its prior."""
_ROW = "_row"


def film_pages(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """One row per film of the pages shown on the days `first`..`last`, sorted by key.

    `inputs` holds `datasets/ratings` from the first day of the source, `datasets/films` and `datasets/users`. The
    answer has `partition_date`, the key (`page`, `film_id`), `user_id`, `GROUPS`, `predicted_at` (UTC), `NUMERIC`, the
    label `relevance` and `label_known_at` (UTC), the moment of the page's last rating. Pages of fewer than `FEWEST`
    films are left out. A range gives the same bytes as its days one by one.

    The relevance is 3 for five stars, 1 for four, else 0: 2^g - 1 of the grades 2, 1, 0 (Burges et al. 2005). So a
    film above 0, which recall and reciprocal rank count, is one that the user liked.
    """
    films, users = _films(inputs["datasets/films"]), _users(inputs["datasets/users"])
    ratings = inputs["datasets/ratings"].join(users, on="user_id", how="left", maintain_order="left")
    ratings = ratings.join(films, on="film_id", how="left", maintain_order="left").collect()
    rows = ratings.filter(pl.col("rating_date").is_between(first, last)).filter(
        pl.len().over("page") >= FEWEST
    )
    rows = _with_film(rows, ratings)
    rows = _with_groups(rows, ratings)
    rows = _with_user(rows, ratings)
    rows = with_neighbours(rows, ratings)
    return rows.select(
        pl.col("rating_date").alias("partition_date"),
        "page",
        "film_id",
        "user_id",
        *GROUPS,
        pl.col("shown_at").alias("predicted_at"),
        *(pl.col(name).cast(pl.Float32) for name in NUMERIC),
        (2 ** (pl.col("rating") - _NOT_LIKED).clip(0) - 1).cast(pl.Int8).alias("relevance"),
        pl.col("rated_at").max().over("page").alias("label_known_at"),
    ).sort("partition_date", "page", "film_id")


def _films(films: pl.LazyFrame) -> pl.LazyFrame:
    return films.select(
        "film_id",
        "release_year",
        (pl.col("release_year") // 10).alias("decade"),
        pl.col("genres").str.split(" ").alias("genre"),
    )


def _users(users: pl.LazyFrame) -> pl.LazyFrame:
    group = pl.format(
        "{}s", (pl.col("age") // 10).clip(1, 6) * 10
    )  # the first also younger, the last also older
    return users.select("user_id", "sex", group.alias("age_group"), "occupation")


def _known(
    rows: pl.DataFrame, facts: pl.DataFrame, by: Sequence[str], prefix: str, windows: Mapping[str, timedelta]
) -> pl.DataFrame:
    """Add number and sum of the ratings of the same `by` that were known when the page was shown."""
    facts = facts.select(*by, "rated_at", pl.col("rating").cast(pl.Int64).alias("sum"))
    return window_sums(
        rows, facts, by=by, at="shown_at", known_at="rated_at", sums=["sum"], windows=windows, prefix=prefix
    )


def _mean(prefix: str, prior: pl.Expr | float, weight: int) -> pl.Expr:
    return (pl.col(f"{prefix}_sum") + weight * prior) / (pl.col(f"{prefix}_n") + weight)


def _with_film(rows: pl.DataFrame, ratings: pl.DataFrame) -> pl.DataFrame:
    rows = _known(rows, ratings, ["film_id"], "film", {"ever": _EVER, "month": _MONTH})
    return rows.with_columns(
        pl.col("film_ever_n").log1p().alias("film_count"),
        pl.col("film_month_n").log1p().alias("film_month_count"),
        _mean("film_ever", _STARS, _FILM_PRIOR).alias("film_mean"),
        (pl.col("shown_at").dt.year() - pl.col("release_year")).alias("film_age"),
    ).with_columns(_mean("film_month", pl.col("film_mean"), _FILM_PRIOR).alias("film_month_mean"))


def _with_groups(rows: pl.DataFrame, ratings: pl.DataFrame) -> pl.DataFrame:
    """Mean rating of the film by users of the same sex, age group and occupation."""
    for group in GROUPS:
        rows = _known(rows, ratings, ["film_id", group], group, {"ever": _EVER}).with_columns(
            _mean(f"{group}_ever", pl.col("film_mean"), _GROUP_PRIOR).alias(f"{group}_mean")
        )
    return rows


def _with_user(rows: pl.DataFrame, ratings: pl.DataFrame) -> pl.DataFrame:
    """Mean of the user so far, and how far above it the user's ratings of the film's genres and decade were."""
    rows = _known(rows, ratings, ["user_id"], "user", {"ever": _EVER}).with_columns(
        pl.col("user_ever_n").log1p().alias("user_count"),
        _mean("user_ever", _STARS, _TASTE_PRIOR).alias("user_mean"),
    )
    rows = _known(rows, ratings, ["user_id", "decade"], "decade", {"ever": _EVER}).with_columns(
        _above("decade_ever").alias("decade_taste")
    )
    one_genre = (
        rows.with_row_index(_ROW).select(_ROW, "user_id", "genre", "shown_at", "user_mean").explode("genre")
    )
    one_genre = _known(one_genre, ratings.explode("genre"), ["user_id", "genre"], "genre", {"ever": _EVER})
    tastes = one_genre.group_by(_ROW, maintain_order=True).agg(
        _above("genre_ever").mean().alias("genre_taste"),
        pl.col("genre_ever_n").mean().log1p().alias("genre_count"),
    )
    return pl.concat([rows, tastes.drop(_ROW)], how="horizontal")


def _above(prefix: str) -> pl.Expr:
    """Mean excess of the user's ratings over their mean, pulled towards 0."""
    return (pl.col(f"{prefix}_sum") - pl.col(f"{prefix}_n") * pl.col("user_mean")) / (
        pl.col(f"{prefix}_n") + _TASTE_PRIOR
    )

"""Taste of a user for a film, from ratings of similar films: a score by item-item neighbours.

Here: the similarity of films as of the start of a week, and the score of each row of a page from what its user had
rated when the page was shown. Not here: counts and means (`features`).

Source of the formulas: Sarwar et al., "Item-based collaborative filtering recommendation algorithms" (2001), with the
shrinkage of Koren, "Factorization meets the neighborhood" (2008). All sums over ratings add whole numbers, tenths of a
star, so that their order does not matter and a range of days gives the same bytes as its days one by one.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

_TENTHS = 10
_SHRINKAGE = 30.0
"""At this number of users who rated both films, their similarity counts half."""
_PRIOR = 3.0
"""Sum of similarities at which a score counts half."""
_FILM_PRIOR, _USER_PRIOR = 5, 5
"""Ratings at which the mean of a film or of a user counts half against the mean of all."""

SCORES = ("neighbours", "neighbour_weight")
"""Columns that `with_neighbours` adds: the score in stars above what is usual, and the similarity that it rests on."""


@dataclass(frozen=True, kw_only=True)
class _Week:
    """Films as the ratings before a week show them."""

    usual: NDArray[np.int32]
    """`[F]`: tenths of a star that a film gets, shrunk to the mean of all films."""
    similarity: NDArray[np.float32]
    """`[F, F]`, -1 to 1; its diagonal is 0."""


def with_neighbours(rows: pl.DataFrame, ratings: pl.DataFrame) -> pl.DataFrame:
    """Add `SCORES` to `rows`, in their order: float64, 0 for a user without known ratings of similar films.

    `rows` have `user_id`, `film_id`, `page`, `shown_at`; `ratings` have `user_id`, `film_id`, `rated_at` and `rating`.
    Similarities come from ratings before the Monday of the page's week, tastes from ratings known when it was shown.
    """
    ratings = ratings.drop_nulls(["rating", "rated_at"]).sort("rated_at", "user_id", "film_id")
    films = 1 + max(int(one["film_id"].to_numpy().max(initial=0)) for one in (rows, ratings))
    users = {key[0]: own for key, own in ratings.partition_by("user_id", as_dict=True).items()}
    numbered = rows.with_row_index("_row").with_columns(pl.col("shown_at").dt.truncate("1w").alias("_week"))
    score, weight = np.zeros(rows.height), np.zeros(rows.height)
    for (monday,), pages in numbered.partition_by("_week", as_dict=True).items():
        week = _learned(ratings.filter(pl.col("rated_at") < monday), films)
        for page in pages.partition_by("page"):
            own = users.get(page["user_id"][0])
            if own is None:
                continue
            known = own.filter(pl.col("rated_at") <= page["shown_at"][0])
            at = page["_row"].to_numpy()
            score[at], weight[at] = _scores(week, page["film_id"].to_numpy(), known)
    return rows.with_columns(pl.Series(SCORES[0], score), pl.Series(SCORES[1], weight))


def _learned(ratings: pl.DataFrame, films: int) -> _Week:
    """Return what `ratings` say about the films 0 to `films` - 1."""
    film, stars = ratings["film_id"].to_numpy(), ratings["rating"].cast(pl.Int32).to_numpy() * _TENTHS
    _, user = np.unique(ratings["user_id"].to_numpy(), return_inverse=True)
    total = int(stars.sum()) / max(1, len(stars))
    usual = _shrunk(film, stars, films, total, _FILM_PRIOR)
    count = int(user.max(initial=-1)) + 1
    residual = stars - usual[film]
    residual = residual - _shrunk(user, residual, count, 0.0, _USER_PRIOR)[user]
    table = np.zeros((count, films), dtype=np.float32)
    table[user, film] = residual
    seen = np.zeros((count, films), dtype=np.float32)
    seen[user, film] = 1
    # Whole numbers below 2^24: exact in float32, in any order.
    together, square = table.T @ table, (table * table).T @ seen
    both = seen.T @ seen
    norm = np.sqrt(square) * np.sqrt(square.T)
    similarity = together / np.maximum(norm, 1) * (both / (both + np.float32(_SHRINKAGE)))
    np.fill_diagonal(similarity, 0)
    return _Week(usual=usual, similarity=similarity.astype(np.float32, copy=False))


def _shrunk(
    number: NDArray[np.int64], values: NDArray[np.int32], count: int, prior: float, weight: int
) -> NDArray[np.int32]:
    """Return the mean of `values` for each number, pulled towards `prior`, as a whole number."""
    rows = np.bincount(number, minlength=count)
    sums = np.bincount(number, weights=values, minlength=count)
    return np.rint((sums + weight * prior) / (rows + weight)).astype(np.int32)


def _scores(
    week: _Week, films: NDArray[np.int32], known: pl.DataFrame
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rated = known["film_id"].to_numpy()
    residual = known["rating"].cast(pl.Int32).to_numpy() * _TENTHS - week.usual[rated]
    residual = residual - round(int(residual.sum()) / (len(residual) + _USER_PRIOR))
    near = np.maximum(week.similarity[np.ix_(films, rated)], 0).astype(np.float64)
    weight = near.sum(axis=1)
    return (near * residual).sum(axis=1) / _TENTHS / (weight + _PRIOR), weight

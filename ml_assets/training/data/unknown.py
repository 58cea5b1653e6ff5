"""Category dropout: in training, a small share of the categories read as unknown.

Otherwise the embedding of the unknown id keeps the random weights it began with, and a category that was not seen in
training gets an arbitrary answer. With it the model learns what to say when the category tells nothing.

A value is dropped by seed, epoch, row and column alone, so world size, lanes and resumes change nothing. Not here:
which values are unknown in the data (features.encoding), what a model says of them before it is trained (load).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml_assets.snapshots.split_reader import Rows

UNKNOWN = 0
"""As in features.encoding, which workers do not import."""


def drop_categories(
    category: NDArray[np.integer], row: NDArray[np.int64], share: float, seed: int, epoch: int
) -> None:
    """Set about `share` of the ids `category` `[B, C]` to unknown, in place, anew each epoch.

    `row` `[B]` says which rows of the table these are.
    """
    if share and category.size:
        category[_chance(row, category.shape[1], seed, epoch) < share] = UNKNOWN


def with_dropped(rows: Rows, share: float, seed: int) -> Rows:
    """`rows` with the same dropped, once for all epochs: for scripts, which read a split as a whole."""
    category = rows.category.copy()
    drop_categories(category, rows.row, share, seed, epoch=0)
    return replace(rows, category=category)


def _chance(row: NDArray[np.int64], columns: int, seed: int, epoch: int) -> NDArray[np.float64]:
    """`[B, C]` numbers, uniform in [0, 1): SplitMix64 (Steele, Lea, Flood 2014) of the place of each value."""
    begin = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    place = row.astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(columns, dtype=np.uint64)
    mixed = begin + place * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53

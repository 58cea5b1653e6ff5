"""Category dropout: in training, a small share of the categories is replaced by the unknown id.

Without it, the embedding of the unknown id keeps its random initial weights, and a category that training never saw
gets an arbitrary answer. With it, the model learns an answer for an uninformative category.

Seed, epoch, row and column alone decide if a value is dropped, so world size, lanes and resumes change nothing. Not
here: unknown values in the data (features.encoding), the output bias before training (step.load).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.snapshots.split_reader import Rows

UNKNOWN = 0
"""Equal to the constant in features.encoding, which workers do not import."""


def drop_categories(
    category: NDArray[np.integer], row: NDArray[np.int64], share: float, seed: int, epoch: int
) -> None:
    """Set about `share` of the ids `category` `[B, C]` to unknown, in place. Each epoch draws others.

    `row` `[B]` holds their row numbers in the table.
    """
    if share and category.size:
        category[_chance(row, category.shape[1], seed, epoch) < share] = UNKNOWN


def with_dropped(rows: Rows, share: float, seed: int, epoch: int) -> Rows:
    """Return `rows` with the dropout of `epoch`: for scripts, which read a whole split."""
    category = rows.category.copy()
    drop_categories(category, rows.row, share, seed, epoch)
    return replace(rows, category=category)


def _chance(row: NDArray[np.int64], columns: int, seed: int, epoch: int) -> NDArray[np.float64]:
    """Return `[B, C]` numbers, uniform in [0, 1): SplitMix64 (Steele, Lea, Flood 2014) of each value's position."""
    begin = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    place = row.astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(columns, dtype=np.uint64)
    mixed = begin + place * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53

"""A digest of many row numbers that does not care who took them, or in which order.

The ranks' rows of a whole epoch have the digest of the split's rows exactly where each was taken once: one line
that says of a training, however often it was broken off and with how many workers, that no row was lost or
learned from twice. Not here: which rows were taken (rowlog), which should be (order).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SALTS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Odd 64-bit constants; two of them, so that a chance agreement has odds of one in 2^128."""


def digest(parts: Iterable[NDArray[Any]]) -> str:
    """32 hex digits of all the row numbers in `parts` (integers), each as often as it occurs.

    Sums of scrambled numbers, modulo 2^64: they do not depend on order, and partial ones may be added up.
    """
    totals = np.zeros(len(_SALTS), dtype=np.uint64)
    for rows in parts:
        totals += [_scrambled((rows.astype(np.uint64) + 1) * np.uint64(salt)).sum() for salt in _SALTS]
    return "".join(f"{int(total):016x}" for total in totals)


def _scrambled(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The last steps of splitmix64 (Steele, Lea, Flood 2014): every bit of the input reaches every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

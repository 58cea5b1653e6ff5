"""Digest of many row numbers that does not depend on their order or on the rank that took them.

The ranks' rows of a whole epoch have the digest of the split's rows exactly if each row was taken once. So one line
shows that a training lost no row and repeated no row, for any number of interruptions and workers. Not here: the rows
taken (rowlog), the rows to take (order).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SALTS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Odd 64-bit constants. With two of them, a false match has odds of one in 2^128."""


def digest(parts: Iterable[NDArray[Any]]) -> str:
    """Return 32 hex digits over all row numbers in `parts` (integers); a repeated number counts each time.

    The digest is a sum of scrambled numbers modulo 2^64: it does not depend on order, and partial sums can be added.
    """
    totals = np.zeros(len(_SALTS), dtype=np.uint64)
    for rows in parts:
        totals += [_scrambled((rows.astype(np.uint64) + 1) * np.uint64(salt)).sum() for salt in _SALTS]
    return "".join(f"{int(total):016x}" for total in totals)


def _scrambled(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the last steps of splitmix64 (Steele, Lea, Flood 2014): every input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

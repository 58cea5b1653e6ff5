"""Exact order statistics and counts over sorted runs: one run per partition, on disk, whatever their total size.

A run is sorted once, when its partition is read. Then a median needs a few places of each run, and counts of texts are
merged range by range. Memory grows with the square root of the number of values. Not here: what is fitted (`encoding`).
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

_pa: Any = import_module("pyarrow")  # it ships no types; `Any` keeps the rest of the module strict

VALUE = "value"
"""Column of a run of texts: ascending, without null."""
RUN = "run"
"""Column of `merged`: number of the run of a text."""
MOST_AT_ONCE = 1_000_000
"""Texts that are merged at once, over all runs."""
MOST_NUMBERS_AT_ONCE = 4_000_000
"""Numbers that are sorted at once, over all runs."""


def median(runs: Sequence[NDArray[Any]]) -> float:
    """Return the median of all values of sorted runs of the same dtype, float64; the mean of both middle values if
    their number is even. Raises `ValueError` without values."""
    return median_and_ends(runs, 1)[0]


def median_and_ends(runs: Sequence[NDArray[Any]], parts: int) -> tuple[float, NDArray[Any]]:
    """Return the `median`, and the `parts` + 1 values that begin or end equal parts of all values, from the least to
    the greatest; found together, because each search reads all runs."""
    values = sum(len(run) for run in runs)
    if not values:
        raise ValueError("no values have no median")
    ends = [round(part * (values - 1) / parts) for part in range(parts + 1)]
    middle = sorted({(values - 1) // 2, values // 2})
    found = kths(runs, [*middle, *ends])
    with np.errstate(over="ignore"):
        return float(np.mean(found[: len(middle)].astype(np.float64))), found[len(middle) :]


def kths(
    runs: Sequence[NDArray[Any]], places: Sequence[int], at_once: int = MOST_NUMBERS_AT_ONCE
) -> NDArray[Any]:
    """Return the values at `places`, 0-based, of all values of sorted runs of the same dtype.

    Up to `at_once` values are sorted together. Of more, pivots of the runs enclose each value, and only values between
    two pivots are copied: about the square root of the number of values times that of runs.
    """
    values, filled = sum(len(run) for run in runs), [run for run in runs if len(run)]
    wanted = np.asarray(places, dtype=np.int64)
    if values <= at_once:
        return np.sort(np.concatenate(filled))[wanted]
    step = max(1, math.isqrt(values // len(filled)))
    pivots = np.unique(np.concatenate([run[::step] for run in filled]))
    # The largest pivot below which there are at most `place` values; the first one is the least of all values.
    low, high = np.zeros(len(wanted), np.int64), np.full(len(wanted), len(pivots), np.int64)
    while (high - low > 1).any():
        middle = (low + high) // 2
        is_below = _counts(filled, pivots[middle], "left") <= wanted
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    found = pivots[low]
    at_most = _counts(filled, found, "right")
    for one in np.flatnonzero(wanted >= at_most):
        after = low[one] + 1
        between: list[NDArray[Any]] = []
        for run in filled:
            begin = _place(run, found[one], "right")
            end = len(run) if after == len(pivots) else _place(run, pivots[after], "left")
            between.append(run[begin:end])
        found[one] = np.sort(np.concatenate(between))[wanted[one] - at_most[one]]
    return found


def _counts(
    runs: Sequence[NDArray[Any]], values: NDArray[Any], side: Literal["left", "right"]
) -> NDArray[np.int64]:
    found = np.zeros(len(values), np.int64)
    for run in runs:
        found += np.searchsorted(run, values, side)
    return found


def _place(run: NDArray[Any], value: Any, side: Literal["left", "right"]) -> int:
    return int(cast(Any, np.searchsorted(run, value, side)))


def write_texts(path: Path, run: pl.DataFrame) -> None:
    """Write a run: the column `VALUE`, ascending and without null, and others. Raises `OSError`."""
    table = cast(Any, run).to_arrow(compat_level=pl.CompatLevel.oldest())
    with path.open("wb") as sink, _pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def map_texts(path: Path) -> Any:
    """Map a run of `write_texts`, a pyarrow table. Its data is read only when it is used."""
    with _pa.memory_map(str(path)) as source:
        return _pa.ipc.open_file(source).read_all()


def map_bytes(path: Path) -> Any:
    """Map a file that is not empty, without an open descriptor: a process may open about a thousand."""
    with _pa.memory_map(str(path)) as source:
        return source.read_buffer()


def merged(runs: Sequence[Any], at_once: int = MOST_AT_ONCE) -> Iterator[pl.DataFrame]:
    """Yield the rows of all runs (`map_texts`) with the column `RUN`, by ranges of `VALUE` that ascend.

    Rows of one text are in one range. A range has about `at_once` rows, or those of a single text.
    """
    # `combine_chunks` copies even a single chunk.
    columns = [run[VALUE] for run in runs]
    texts = [one.chunk(0) if one.num_chunks == 1 else one.combine_chunks() for one in columns]
    begins = [0] * len(runs)
    for end in [*_ends([_Texts(one) for one in texts], at_once), None]:
        ends = [
            len(one) if end is None else bisect_right(_Texts(one), end, lo=begin)
            for one, begin in zip(texts, begins, strict=True)
        ]
        yield pl.concat(
            [
                pl.DataFrame(run.slice(begin, stop - begin)).with_columns(pl.lit(number).alias(RUN))
                for number, (run, begin, stop) in enumerate(zip(runs, begins, ends, strict=True))
            ]
        )
        begins = ends


def _ends(runs: Sequence["_Texts"], at_once: int) -> list[str]:
    """Return the last texts of all ranges but the last."""
    if sum(len(run) for run in runs) <= at_once:
        return []
    # A range spans half of `at_once` by its pivots; each run may have up to a step more.
    step = max(1, at_once // (2 * len(runs)))
    pivots = sorted(run[i] for run in runs for i in range(step - 1, len(run), step))
    return list(dict.fromkeys(pivots[:: max(1, at_once // (2 * step))]))


class _Texts(Sequence[str]):
    """A pyarrow column of texts, read one at a time."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, place: Any) -> Any:
        return self._column[place].as_py()

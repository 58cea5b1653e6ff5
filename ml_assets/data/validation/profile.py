"""Profile of a partition: completeness, ranges, distributions. The manifest holds it as JSON.

The same content gives the same profile. `drift.py` compares two profiles.
"""

import hashlib
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.data.validation.relations import ROWS, correlations

_MANY = 1_000_000
"""Numbers from which on columns are sorted in threads: a start of threads is then a small part of the time."""
BINS = 10
"""Quantile bins of a numeric column."""
TAILS = (0.01, 0.05, 0.95, 0.99)
"""Further quantiles. `drift.py` assumes evenly spread rows in a bin, which is far from true in the outermost bins."""
FEW = 24
"""Distinct values of a column up to which each value is counted. Of texts with more, the most frequent are counted."""
LONGEST = 48
"""Characters of one text. A longer text is cut and gets a hash of the whole, so that equal beginnings stay apart."""
BUCKETS = 64
"""Buckets over which the values of a column with more than `FEW` distinct texts are spread by their hash. The counts of
the most frequent values alone would not do for `drift.py`: a value is among them on one day by chance, and not on the
next."""

Floats = npt.NDArray[np.float64]


def profile(frame: pl.DataFrame, bins: int = BINS, hidden: Collection[str] = ()) -> dict[str, Any]:
    """Return JSON values: `{"rows": n, "columns": {name: …}, "correlations": …}`, the last one as `relations.py`
    describes it, if two number columns have different values. A column has

    * `nulls`: rows without a value, NaN included; `infinite`: infinite values, if there are any
    * numbers: `min`, `max`, `mean` of the finite values; then `values`, or for more than `FEW` distinct values
      `edges` (inner quantiles and `TAILS`, ascending) and `counts` (one item more than `edges`: rows of each
      interval up to and including its edge, then the rows above the last edge)
    * strings, categories and booleans: `distinct`, `values` (the most frequent, cut to `LONGEST`), `others` (rows with
      another value), and `buckets` if there are others: rows of all values by their `bucket`
    * durations: as numbers, in seconds; lists and vectors: `fewest_items`, `most_items`
    * dates and times: `min`, `max` (ISO 8601; times in UTC)

    `values` is a list of [value, rows], the most frequent first. A column in `hidden` has only `nulls` and
    `hidden: true`.
    """
    seen = frame.drop(hidden, strict=False)
    seconds = pl.selectors.duration().dt.total_microseconds().cast(pl.Float64) / 1e6
    numbers = seen.select(pl.selectors.numeric() | pl.selectors.duration()).with_columns(seconds)
    columns: dict[str, dict[str, Any]] = _numbers(numbers, bins)
    for name, dtype in frame.schema.items():
        if name in columns:
            continue
        if name in hidden:
            columns[name] = {"nulls": frame[name].null_count(), "hidden": True}
            continue
        series = frame.get_column(name)
        if isinstance(dtype, pl.String | pl.Boolean):
            columns[name] = _categories(series)
        elif isinstance(dtype, pl.Categorical):
            columns[name] = _categories(series.cast(pl.String))
        elif isinstance(dtype, pl.List | pl.Array):
            columns[name] = _items(series)
        elif isinstance(dtype, pl.Date | pl.Datetime):
            columns[name] = _times(series)
        else:
            columns[name] = {"nulls": series.null_count()}
    evenly = numbers.gather_every(max(1, -(-frame.height // ROWS))).cast(pl.Float64)
    related = correlations({one.name: one.to_numpy() for one in evenly})
    return {
        "rows": frame.height,
        "columns": {name: columns[name] for name in frame.columns},
        **({"correlations": related} if related else {}),
    }


def completeness(profiled: Mapping[str, Any]) -> dict[str, float]:
    """Return column → share of rows with a value, 0 to 1; 1 if there are no rows."""
    rows: int = profiled["rows"]
    return {name: 1 - column["nulls"] / rows if rows else 1.0 for name, column in profiled["columns"].items()}


def _numbers(frame: pl.DataFrame, bins: int) -> dict[str, dict[str, Any]]:
    if not frame.width:
        return {}
    # Columns lie one after the other, and missing values are NaN. numpy sorts floats by vector instructions: on a
    # million rows five times as fast as polars, and without the passes that find values that are not finite.
    ordered: Floats = frame.cast(pl.Float64).to_numpy(writable=True)
    columns = [ordered[:, index] for index in range(frame.width)]
    if ordered.size < _MANY:
        ordered.sort(axis=0)
    else:
        with ThreadPoolExecutor(pl.thread_pool_size()) as threads:
            list(threads.map(np.ndarray.sort, columns))
    return dict(zip(frame.columns, (_number(values, bins) for values in columns), strict=True))


def _number(ordered: Floats, bins: int) -> dict[str, Any]:
    """Profile ascending values, with NaN at the end."""
    low, above_zero = ordered.searchsorted([-np.inf, 0.0], side="right").tolist()
    zero, high, known = ordered.searchsorted([0.0, np.inf, np.nan]).tolist()
    column: dict[str, Any] = {"nulls": len(ordered) - known}
    if infinite := low + known - high:
        column["infinite"] = infinite
    if low < high:
        ordered[zero:above_zero] = 0.0  # -0.0 is equal, and sorts in any order
        values = ordered[low:high]
        column |= {"min": float(values[0]), "max": float(values[-1]), "mean": _short(_mean(values))}
        column |= _distribution(values, bins)
    return column


def _mean(values: Floats) -> float:
    with np.errstate(all="ignore"):
        total = values.sum()
    # The sum of very large numbers may be infinite, which JSON cannot hold; their mean is finite.
    if np.isfinite(total):
        return float(total) / len(values)
    with np.errstate(over="ignore"):  # rounding may still pass the largest number
        return float(np.clip((values / len(values)).sum(), values[0], values[-1]))


def _distribution(values: Floats, bins: int) -> dict[str, Any]:
    size = len(values)
    # Positions at which a new value begins; the values are ascending.
    begins = np.flatnonzero(values[1:] != values[:-1]) + 1
    if len(begins) < FEW:
        bounds = [0, *begins.tolist(), size]
        counted = [[float(values[low]), high - low] for low, high in pairwise(bounds)]
        return {"values": sorted(counted, key=lambda one: (-one[1], one[0]))}
    shares = np.array(sorted({*TAILS, *(step / bins for step in range(1, bins))}))
    quantiles = values[(shares * (size - 1)).astype(np.intp)].tolist()
    edges = sorted({_short(edge) for edge in quantiles})
    below = [0, *np.searchsorted(values, edges, side="right").tolist(), size]
    return {"edges": edges, "counts": [high - low for low, high in pairwise(below)]}


def _categories(series: pl.Series) -> dict[str, Any]:
    counts = (
        series.drop_nulls()
        .alias("value")
        .value_counts(name="n")
        .sort(["n", "value"], descending=[True, False])
    )
    first = counts.head(FEW)
    column = {
        "nulls": series.null_count(),
        "distinct": counts.height,
        "values": [[_cut(value), rows] for value, rows in first.iter_rows()],
        "others": series.len() - series.null_count() - int(first["n"].sum()),
    }
    if counts.height > FEW:
        places = [bucket(_cut(value)) for value in counts["value"]]
        column["buckets"] = (
            np.bincount(places, weights=counts["n"].to_numpy(), minlength=BUCKETS).astype(int).tolist()
        )
    return column


def bucket(value: str | bool) -> int:
    """Return the bucket of a value of `values`, from 0 to before `BUCKETS`: the same in each version and process."""
    return zlib.crc32(str(value).encode()) % BUCKETS


def _items(series: pl.Series) -> dict[str, Any]:
    """Profile a list or a vector by its number of items."""
    column: dict[str, Any] = {"nulls": series.null_count()}
    sizes = (series.list if isinstance(series.dtype, pl.List) else series.arr).len().drop_nulls()
    if sizes.len():
        column["fewest_items"], column["most_items"] = sizes.sort().gather([0, -1]).to_list()
    return column


def _times(series: pl.Series) -> dict[str, Any]:
    column: dict[str, Any] = {"nulls": series.null_count()}
    if column["nulls"] < series.len():
        # Formatted by polars: Python's datetime ends with the year 9999, and bad data holds later years.
        form = "%Y-%m-%d" if series.dtype == pl.Date else "%Y-%m-%dT%H:%M:%SZ"
        edges = series.drop_nulls().sort().gather([0, -1])
        column["min"], column["max"] = edges.dt.to_string(form).to_list()
    return column


def _cut(value: str | bool) -> str | bool:
    if isinstance(value, bool) or len(value) <= LONGEST:
        return value
    return f"{value[:LONGEST]}… #{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def _short(value: float) -> float:
    """Round to six significant digits: enough for people and for a histogram."""
    return float(f"{value:.6g}")

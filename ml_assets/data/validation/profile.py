"""Profile of a partition: completeness, ranges, distributions, correlations. The manifest holds it as JSON.

The same content gives the same profile. `drift.py` compares two profiles.

The daily mean of a temperature moves by more than half a standard deviation; given dew point and humidity it hardly
moves. So `Relations` predicts a column from the others by a ridge regression of the past, and the residual of the
partition's mean is held against the residuals of past partitions. All regressions follow from one inverse of the
correlation matrix (of a Gaussian with precision P, the residual of column j given the others is (P z)_j / P_jj), and
correlations are in the stored profiles, so no past row is read. Not here: what is unusual (`table_drift.py`).
"""

import base64
import hashlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from resources.threads import one_blas_thread

_MANY = 1_000_000
"""Numbers from which on columns are sorted in threads: a start of threads is then a small part of the time."""
_MANY_TEXTS = 10_000
"""Distinct texts from which on a sort of all of them takes longer than the choice of the most frequent ones."""
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

_ONES = np.uint32(0xFFFFFFFF)
_CRC = np.array([zlib.crc32(bytes([byte ^ 0xFF])) ^ 0xFF000000 for byte in range(256)], dtype=np.uint32)
"""Table of the checksum, one number for each byte (RFC 1952, section 8)."""

Floats = npt.NDArray[np.float64]


def profile(frame: pl.DataFrame, bins: int = BINS, hidden: Collection[str] = ()) -> dict[str, Any]:
    """Return JSON values: `{"rows": n, "columns": {name: …}, "correlations": …}`, the last one as `correlations`
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
    compared = numbers.select(pl.nth(range(min(COLUMNS, numbers.width))))
    evenly = compared.gather_every(max(1, -(-frame.height // ROWS))).cast(pl.Float64)
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
    with np.errstate(all="ignore"):  # a sum of very large numbers
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
    total = values.sum()
    # The sum of very large numbers may be infinite, which JSON cannot hold; their mean is finite.
    if np.isfinite(total):
        return float(total) / len(values)
    # Rounding may still pass the largest number.
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
    counts = series.drop_nulls().alias("value").value_counts(name="n")
    frequent = counts
    if counts.height > _MANY_TEXTS:
        frequent = counts.filter(pl.col("n") >= pl.col("n").top_k(FEW).min())
        frequent = frequent.top_k(FEW, by=["n", "value"], reverse=[False, True])
    first = frequent.sort(["n", "value"], descending=[True, False]).head(FEW)
    column = {
        "nulls": series.null_count(),
        "distinct": counts.height,
        "values": [[_cut(value), rows] for value, rows in first.iter_rows()],
        "others": series.len() - series.null_count() - int(first["n"].sum()),
    }
    if counts.height > FEW:
        rows = np.bincount(buckets(counts["value"]), weights=counts["n"].to_numpy(), minlength=BUCKETS)
        column["buckets"] = rows.astype(int).tolist()
    return column


def bucket(value: str | bool) -> int:
    """Return the bucket of a value of `values`, from 0 to before `BUCKETS`: the same in each version and process."""
    return zlib.crc32(str(value).encode()) % BUCKETS


def buckets(texts: pl.Series) -> npt.NDArray[np.uint32]:
    """Return the `bucket` of each text as the profile cuts it.

    The checksum is computed for all texts at once, byte by byte: one after the other, the texts of a column of ids took
    most of the time of an ingest.
    """
    is_long = texts.str.len_chars() > LONGEST
    if is_long.any():
        texts = texts.set(is_long, None).fill_null(pl.Series([_cut(text) for text in texts]))
    sizes = texts.str.len_bytes().to_numpy().astype(np.int64)
    data = np.frombuffer(texts.str.join().item().encode(), dtype=np.uint8)
    order = np.argsort(sizes)[::-1]  # so those that have one more byte are the first ones
    begins, sizes = (np.cumsum(sizes) - sizes)[order], sizes[order]
    found = np.full(len(texts), _ONES, dtype=np.uint32)
    for place in range(int(sizes[0]) if len(sizes) else 0):
        some = found[: np.searchsorted(-sizes, -place)]
        some[:] = _CRC[(some ^ data[begins[: len(some)] + place]) & 0xFF] ^ (some >> 8)
    places = np.empty_like(found)
    places[order] = (found ^ _ONES) % BUCKETS
    return places


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


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

ROWS = 50_000
"""Rows of a partition from which correlations are computed, evenly spaced. Their error is then below 0.005."""
COLUMNS = 128
"""Most number columns with correlations: they take 22 kB of the manifest. Of more, the first are compared."""
RIDGE = 0.003
"""Variance that is added to each standardized column. Measured on the demo's tables: 0.0003 finds as many shifts, 0.03
fewer."""
_SCALE = 32767
"""Correlations are stored as whole numbers of 16 bits."""
_FOLDS = 7
"""Parts of the past, each predicted by the regression on the others: a regression knows its own past too well."""


def correlations(columns: Mapping[str, Floats]) -> dict[str, Any]:
    """Return JSON values of the correlations of number columns: `columns`, `sd`, and `upper`; empty for fewer than two.

    `columns` maps a name to its values, of which those that are not finite are missing. `sd` are the standard
    deviations. `upper` is base64 of little-endian int16: the correlations above the diagonal, row by row, times 32767.
    A missing value counts as the mean of its column. Columns without two different values are left out.
    """
    if len(columns) < 2:
        return {}
    names = list(columns)[:COLUMNS]
    values: Floats = np.stack([columns[name] for name in names])
    known = np.isfinite(values)
    counts = known.sum(axis=1)
    with np.errstate(all="ignore"):
        values = np.where(known, values, 0.0)
        mean = values.sum(axis=1) / np.maximum(counts, 1)
        values = np.where(known, values - mean[:, None], 0.0)
        squares = np.einsum("cr,cr->c", values, values)
    some = np.flatnonzero((squares > 0) & np.isfinite(squares))
    if len(some) < 2:
        return {}
    values = values[some] / np.sqrt(squares[some])[:, None]
    with one_blas_thread():
        found = np.clip(values @ values.T, -1.0, 1.0)
    whole = np.rint(found[np.triu_indices(len(some), 1)] * _SCALE).astype("<i2")
    return {
        "columns": [names[place] for place in some],
        "sd": [float(f"{one:.6g}") for one in np.sqrt(squares[some] / counts[some])],
        "upper": base64.b64encode(whole.tobytes()).decode(),
    }


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Distances of the means of one partition, and of its past, from their predictions. Unit: standard deviations of
    the column in the past."""

    columns: tuple[str, ...]
    means: Floats
    """Means of the partition, in units of the columns, shape (columns,)."""
    sd: Floats
    """Standard deviations of rows of the past, shape (columns,)."""
    now: Floats
    """Distances of the partition, shape (columns,)."""
    past: Floats
    """Distances of each past partition, predicted by the others, shape (partitions, columns)."""
    moves: Floats
    """Change of each residual (row) if the mean of a column moves by 1, shape (columns, columns)."""
    steadiness: Floats
    """1 / standard deviation of each column given the others, in rows of the past, shape (columns,)."""


class Relations:
    """Means and correlations of a table's partitions. Decodes each profile once."""

    def __init__(self, profiles: Sequence[Mapping[str, Any]]) -> None:
        """`profiles` are of one table, in the order of time. Those without correlations are never compared."""
        known: list[Mapping[str, Any]] = [one.get("correlations", {"columns": ()}) for one in profiles]
        names: list[str] = [name for one in known for name in one["columns"]]
        self.columns = tuple(dict.fromkeys(names))
        """Number columns with correlations in any partition."""
        place = {name: number for number, name in enumerate(self.columns)}
        shape = (len(profiles), len(self.columns))
        self._rows, self._means, self._sd = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._correlations = np.zeros((*shape, len(self.columns)), dtype=np.float32)
        self.largest_share = np.full(shape, np.nan)
        """Largest share of a partition's rows that have one value, or lie in one bin: (partitions, columns)."""
        for number, (profile, one) in enumerate(zip(profiles, known, strict=True)):
            for name in self.columns:
                column: Mapping[str, Any] = profile["columns"].get(name, {})
                if "mean" in column:
                    at = number, place[name]
                    self._rows[at] = profile["rows"] - column["nulls"] - column.get("infinite", 0)
                    self._means[at] = column["mean"]
                    self.largest_share[at] = _largest_share(column)
            if not one["columns"]:
                continue
            places: Ints = np.array([place[name] for name in one["columns"]])
            self._sd[number, places] = one["sd"]
            upper = np.frombuffer(base64.b64decode(one["upper"]), dtype="<i2") / _SCALE
            rows, others = np.triu_indices(len(places), 1)
            at_rows, at_others = places[rows], places[others]
            self._correlations[number, at_rows, at_others] = upper
            self._correlations[number, at_others, at_rows] = upper
        self.has_some = np.array([bool(one["columns"]) for one in known], dtype=bool)
        """True for partitions with correlations."""

    def partitions_with(self, past: Ints) -> Ints:
        """Return the number of partitions of `past` in which each column has a value, shape (columns,)."""
        return (self._rows[past] > 0).sum(axis=0)

    def residuals(self, past: Ints, now: int, usable: Bools) -> tuple[Residuals, Residuals]:
        """Return the residuals of `now` and its past: from the mean of the past, and given the other columns.

        `past` and `now` are positions of profiles; `usable` are the columns to compare.
        """
        places = np.flatnonzero(usable & (self._rows[now] > 0) & (self._sd[past].max(axis=0) > 0))
        names = tuple(self.columns[place] for place in places.tolist())
        of_past = past[:, None]
        rows, means = self._rows[of_past, places], self._means[of_past, places]
        # Sums of products around each partition's own means.
        scale = np.sqrt(rows) * self._sd[of_past, places]
        related = self._correlations_of(past, places)
        folds = [fold for fold in np.array_split(np.arange(len(past)), _FOLDS) if len(fold)]
        in_fold = np.array(
            [np.einsum("pij,pi,pj->ij", related[fold], scale[fold], scale[fold]) for fold in folds]
        )
        diagonal = np.arange(len(places))
        in_fold[:, diagonal, diagonal] = [(scale[fold] ** 2).sum(axis=0) for fold in folds]
        center, covariance = _pooled(in_fold.sum(axis=0), rows, means)
        sd = np.sqrt(np.diagonal(covariance) / np.maximum(rows.sum(axis=0), 1.0))
        sd = np.where(sd > 0, sd, 1.0)
        without = [
            _pooled(
                np.delete(in_fold, number, axis=0).sum(axis=0),
                np.delete(rows, fold, axis=0),
                np.delete(means, fold, axis=0),
            )
            for number, fold in enumerate(folds)
        ]
        regressions, steadiness = _regressions(np.stack([covariance, *(others for _, others in without)]))
        from_mean, given_others = np.zeros(means.shape), np.zeros(means.shape)
        for fold, (around, _), regression in zip(folds, without, regressions[1:], strict=True):
            from_mean[fold] = np.where(rows[fold] > 0, (means[fold] - around) / sd, 0.0)
            given_others[fold] = from_mean[fold] @ regression.T
        moves = regressions[0]
        moved = (self._means[now, places] - center) / sd
        alone = Residuals(
            columns=names,
            means=self._means[now, places],
            sd=sd,
            now=moved,
            past=from_mean,
            moves=np.eye(len(places)),
            steadiness=np.ones(len(places)),
        )
        together = replace(alone, now=moves @ moved, past=given_others, moves=moves, steadiness=steadiness[0])
        return alone, together

    def _correlations_of(self, past: Ints, places: Ints) -> npt.NDArray[np.float32]:
        """Return the correlations of partitions and columns. Neighbours are not copied: most windows are neighbours."""
        are_neighbours = past[-1] - past[0] == len(past) - 1
        some = self._correlations[past[0] : past[-1] + 1] if are_neighbours else self._correlations[past]
        return some if len(places) == len(self.columns) else some[:, places[:, None], places]


def _pooled(products: Floats, rows: Floats, means: Floats) -> tuple[Floats, Floats]:
    """Return the means over partitions, and the sums of products around them: within partitions and between them."""
    center = (rows * means).sum(axis=0) / np.maximum(rows.sum(axis=0), 1.0)
    apart = np.sqrt(rows) * (means - center)
    return center, products + apart.T @ apart


def _regressions(covariances: Floats) -> tuple[Floats, Floats]:
    """Return for each of `covariances`, shape (n, columns, columns), the matrix that turns standardized means into
    residuals given all other columns, by ridge regressions, and 1 / standard deviation of each column's rows given the
    others."""
    size = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    size = np.where(size > 0, size, 1.0)
    correlation = covariances / size[:, :, None] / size[:, None, :]
    np.einsum("nii->ni", correlation)[:] = 1.0 + RIDGE  # a view of the diagonals
    precision = np.linalg.inv(correlation)
    own = np.diagonal(precision, axis1=1, axis2=2)
    return precision / own[:, :, None], np.sqrt(own)


def _largest_share(column: Mapping[str, Any]) -> float:
    counts: list[int] = [rows for _, rows in column["values"]] if "values" in column else column["counts"]
    return max(counts) / max(1, sum(counts))

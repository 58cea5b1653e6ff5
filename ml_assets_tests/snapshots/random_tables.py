"""Random feature tables for the tests of the builder: rows, lists, weights, classes and blobs, in odd partitions."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl

from ml_assets.data.snapshots.spec import Cutoffs, RowSpec, Split
from ml_assets_tests.portable import exp

FIRST = date(2024, 2, 1)
KINDS = ("rows", "weights", "lists", "classes", "blobs", "weighted lists")
WORDS = ["", "a", "b", "Ä", "a b", "zz", "null", "0", "long text that does not fit into twelve bytes"]


@dataclass(frozen=True, kw_only=True)
class RandomTable:
    """A table, and everything that decides its snapshot."""

    frame: pl.DataFrame
    """Rows in the order of its partitions."""
    split: Split
    spec: RowSpec
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    min_count: int
    shard_bytes: int


def random_table(seed: int) -> RandomTable:
    """Return the table of a seed. The same seed gives the same table."""
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    sizes = _sizes(random)
    rows, days = int(sizes.sum()), np.repeat(np.arange(len(sizes)), sizes)
    dates = [FIRST + timedelta(days=int(one)) for one in days]
    known = np.datetime64(FIRST, "us") + (days + 1).astype("timedelta64[D]")
    known = known + random.integers(0, 30 * 3600, rows).astype("timedelta64[s]")
    known_at = pl.Series("known", known).dt.replace_time_zone("UTC")
    columns: dict[str, pl.Series] = {
        "day": pl.Series(dates) if seed % 2 else pl.Series(dates).cast(pl.String),
        "known": pl.select(pl.when(pl.Series(random.random(rows) < 0.02).not_()).then(known_at)).to_series(),
        "unread": pl.Series(random.random(rows)),
        "id": pl.Series(np.arange(rows)),
    }
    numbers, categories = _numbers(random, rows), _categories(random, rows)
    chosen = [name for name in numbers if random.random() < 0.7]
    texts = [name for name in categories if random.random() < 0.7]
    columns |= numbers | categories
    label = random.integers(0, 4 if "lists" in kind else 2, rows)
    columns["label"] = _with_nulls(random, pl.Series(label), 0.05)
    roles: dict[str, str | None] = {}
    if kind == "classes":
        words = [pl.Series(["b", "a", "ü"]), pl.Series([10, 9, 2]), pl.Series([True, False])][seed % 3]
        columns["label"] = _with_nulls(random, words.gather(random.integers(0, len(words), rows)), 0.05)
    if "lists" in kind:
        number = np.concatenate([1000 * n + random.integers(0, 9, size) for n, size in enumerate(sizes)])
        columns["list"] = pl.Series(number) if seed % 4 < 2 else pl.Series(number).cast(pl.String)
        columns["label"] = _with_nulls(random, pl.Series(label), 0.01)
        roles["group"] = "list"
    if "weight" in kind:
        weight = random.exponential(10.0 ** random.integers(-3, 6), rows) * (random.random(rows) > 0.1)
        columns["weight"] = pl.Series(weight.astype([np.float64, np.float32, np.int64][seed % 3]) + seed % 2)
        roles["weight"] = "weight"
    if kind == "blobs":
        blobs = [random.bytes(int(size)) for size in random.integers(0, 1500, rows)]
        columns["blob"] = _with_nulls(random, pl.Series(blobs, dtype=pl.Binary), 0.05)
    count = len(sizes)
    oldest, train = int(random.integers(0, 2)), count - 4
    keys = tuple((FIRST + timedelta(days=one)).isoformat() for one in range(oldest, count))
    objective = {"classes": "multiclass", "lists": "ranking", "weighted lists": "ranking"}.get(kind, "binary")
    moment = datetime.combine(FIRST, datetime.min.time(), tzinfo=UTC)
    spec = RowSpec(
        partition="day",
        label="label",
        label_known_at="known",
        cutoffs=Cutoffs(
            train=moment + timedelta(days=oldest + train),
            validation=moment + timedelta(days=count - 1),
            holdout=moment + timedelta(days=count + 1),
        ),
        blob="blob" if kind == "blobs" else "",
        objective=objective,  # pyright: ignore[reportArgumentType]
        primary_key=("id",),
        **roles,  # pyright: ignore[reportArgumentType]
    )
    split = Split(train=keys[:train], validation=keys[train : train + 2], holdout=keys[train + 2 :])
    return RandomTable(
        frame=pl.DataFrame(columns),
        split=split,
        spec=spec,
        numeric=tuple(chosen),
        categorical=tuple(texts),
        min_count=int(random.integers(1, 12)),
        shard_bytes=int(10 ** random.uniform(2.8, 5)),
    )


def _sizes(random: np.random.Generator) -> np.ndarray:
    """Rows of each partition: uneven, some none, but never in validation and holdout."""
    sizes = random.integers(0, 120, int(random.integers(8, 14)))
    sizes[random.random(len(sizes)) < 0.15] = 0
    return np.maximum(sizes, np.where(np.arange(len(sizes)) < len(sizes) - 5, 0, 60))


def _numbers(random: np.random.Generator, rows: int) -> dict[str, pl.Series]:
    normal = random.normal(size=rows)
    return {
        "float32": _with_nulls(random, pl.Series(normal.astype(np.float32)), 0.1),
        "float64": pl.Series(np.where(random.random(rows) < 0.1, np.nan, normal * 1e-7 + 3)),
        "skewed": _with_nulls(random, pl.Series(exp(4 * random.normal(size=rows))), 0.3),
        "int8": _with_nulls(random, pl.Series(random.integers(-100, 100, rows).astype(np.int8)), 0.1),
        "epoch": pl.Series(1_700_000_000 + random.integers(0, 10**7, rows)),
        "uint64": pl.Series(random.integers(0, 2**50, rows).astype(np.uint64)),
        "bool": _with_nulls(random, pl.Series(random.random(rows) < 0.2), 0.1),
        "constant": _with_nulls(random, pl.Series(np.full(rows, 0.1)), 0.1),
        "zeros": pl.Series(np.where(random.random(rows) < 0.5, 0.0, -0.0)),
    }


def _categories(random: np.random.Generator, rows: int) -> dict[str, pl.Series]:
    few = random.zipf(1.6, rows) % 40
    days = [FIRST + timedelta(days=int(one)) for one in few]
    return {
        "text": _with_nulls(random, pl.Series(WORDS).gather(few % len(WORDS)), 0.1),
        "number": _with_nulls(random, pl.Series(few), 0.1),
        "real": pl.Series(np.where(few == 3, np.nan, np.where(few == 2, -0.0, few / 4))),
        "truth": pl.Series(few % 2 == 0),
        "date": _with_nulls(random, pl.Series(days), 0.1),
        "moment": pl.Series(days).cast(pl.Datetime("us", "UTC")),
        "dictionary": pl.Series([f"w{one}" for one in few]).cast(pl.Categorical),
    }


def _with_nulls(random: np.random.Generator, values: pl.Series, share: float) -> pl.Series:
    known = pl.Series(random.random(len(values)) >= share)
    return pl.select(pl.when(known).then(values)).to_series()

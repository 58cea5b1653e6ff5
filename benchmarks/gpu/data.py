"""Synthetic snapshots for the GPU benchmark, written with numpy and pyarrow alone.

Here: columns with a learnable label, and texts with a learnable next byte. The GPU machine has neither polars nor
Dagster, so the project's own snapshot builder cannot run there; the format is the project's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ml_assets.data.snapshots.builder import write_index
from ml_assets.data.snapshots.shards import ARCHIVE_END, Blobs, Rows, member, places_of, write_rows
from ml_assets.data.snapshots.split_reader import (
    MANIFEST,
    SPLITS,
    Archive,
    InputSpec,
    PartitionIndex,
    Shard,
    Snapshot,
    SourceValues,
    SplitIndex,
    SplitName,
    file_sha256,
    open_snapshot,
    schema_hash,
)

NUMERIC, CARDINALITIES = 38, (17, 4, 110, 13)
"""Number of columns, about that of the flights model."""
_FEW_SHARE = 0.05
"""Validation rows as a share of the training rows, and as many holdout rows."""
_SHARD_ROWS = 500_000
_LABEL = "label"

_Make: TypeAlias = Callable[[np.random.Generator, Path, SplitName, int, int], Rows]
"""Function (random generator, archive to write, split, first row number, rows) → rows."""


def columns(folder: Path, rows: int) -> Snapshot:
    """Write `rows` training rows of numbers and categories. A hidden linear rule and noise decide the label, 0 or 1."""
    inputs = InputSpec(
        numeric=tuple(f"x{column}" for column in range(NUMERIC)),
        fill=(0.0,) * NUMERIC,
        categorical=tuple(f"c{column}" for column in range(len(CARDINALITIES))),
        cardinalities=CARDINALITIES,
    )
    hidden = np.random.default_rng(1)
    weights = hidden.normal(size=NUMERIC).astype(np.float32) / NUMERIC**0.5
    effects = [hidden.normal(scale=0.5, size=size).astype(np.float32) for size in CARDINALITIES]

    def make(chance: np.random.Generator, _: Path, __: SplitName, first: int, count: int) -> Rows:
        numeric = chance.standard_normal((count, NUMERIC), dtype=np.float32)
        category = np.stack([chance.integers(0, size, count) for size in CARDINALITIES], axis=1)
        score = numeric @ weights + sum(effect[category[:, i]] for i, effect in enumerate(effects))
        label = score + chance.logistic(scale=0.5, size=count) > 0
        return Rows(
            numeric=numeric,
            category=category.astype(np.int32),
            label=label.astype(np.float32),
            row=np.arange(first, first + count),
        )

    return _write(folder, inputs, rows, _SHARD_ROWS, make)


def texts(folder: Path, rows: int, tokens: int) -> Snapshot:
    """Write `rows` texts of `tokens` bytes; three bytes of four follow from the previous byte."""
    inputs = InputSpec(
        numeric=("x",),
        fill=(0.0,),
        categorical=(),
        cardinalities=(),
        blob="text",
    )
    follows = np.random.default_rng(2).permutation(256)

    def make(chance: np.random.Generator, path: Path, _: SplitName, first: int, count: int) -> Rows:
        text = chance.integers(0, 256, (count, tokens))
        is_new = chance.random((count, tokens)) < 0.25
        for place in range(1, tokens):
            text[:, place] = np.where(is_new[:, place], text[:, place], follows[text[:, place - 1]])
        numbers = np.arange(first, first + count)
        with path.open("wb") as archive:
            for number, row in zip(numbers.tolist(), text.astype(np.uint8), strict=True):
                archive.write(member(number, row.tobytes()))
            archive.write(ARCHIVE_END)
        return Rows(
            numeric=np.zeros((count, 1), dtype=np.float32),
            category=np.empty((count, 0), dtype=np.int32),
            label=np.zeros(count, dtype=np.float32),
            row=numbers,
            blobs=Blobs.map(path, places_of(np.full(count, tokens, dtype=np.int64))),
        )

    return _write(folder, inputs, rows, rows, make)


def _write(folder: Path, inputs: InputSpec, rows: int, shard_rows: int, make: _Make) -> Snapshot:
    folder.mkdir(parents=True)
    chance = np.random.default_rng(0)
    schema = schema_hash(inputs, _LABEL)
    shards: list[Shard] = []
    index: list[PartitionIndex] = []
    splits: list[SplitIndex] = []
    first = 0
    for split in SPLITS:
        size = rows if split == "train" else max(int(_FEW_SHARE * rows), 16)
        index.append(PartitionIndex(key=f"2024-01-0{len(index) + 1}", split=split, rows=size, excluded={}))
        splits.append(write_index(folder, split, [np.arange(first, first + size)]))
        for number, begin in enumerate(range(0, size, shard_rows)):
            path = folder / f"{split}-{number:05d}.arrow"
            part = make(chance, path.with_suffix(".tar"), split, first + begin, min(shard_rows, size - begin))
            write_rows(path, part, schema)
            shards.append(_shard(split, path, len(part), has_blobs=part.blobs is not None))
        first += size
    snapshot = Snapshot(
        folder=folder,
        source=SourceValues(table="features/benchmark"),
        split_config_hash="benchmark",
        schema_hash=schema,
        fitted_digest="benchmark",
        inputs=inputs,
        label=_LABEL,
        cutoffs=dict.fromkeys(SPLITS, "2024-02-01T00:00:00+00:00"),
        index=tuple(index),
        splits=tuple(splits),
        shards=tuple(shards),
    )
    (folder / MANIFEST).write_text(snapshot.to_json())
    return open_snapshot(folder, snapshot.digest)


def _shard(split: SplitName, path: Path, rows: int, *, has_blobs: bool) -> Shard:
    tar = path.with_suffix(".tar")
    return Shard(
        split=split,
        path=path.name,
        sha256=file_sha256(path),
        rows=rows,
        bytes=path.stat().st_size,
        blobs=Archive(path=tar.name, sha256=file_sha256(tar), bytes=tar.stat().st_size)
        if has_blobs
        else None,
    )

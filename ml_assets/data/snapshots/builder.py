"""Builder of a snapshot: turns chosen rows into encoded, balanced shards, index files and their manifest.

The rows of a split are chosen once, when the snapshot is made, and an evaluation reads the rows that its index names.
An index file is one delta-encoded Parquet file, in which row numbers of whole partitions take almost no space. Here:
distributing rows over shards, writing a folder that is either complete or absent, and reading index and fitted state
back. Not here: choosing rows (row_choice), fitting (features.encoding), the rows for training (split_reader).
"""

import errno
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import FittedState, class_ids
from ml_assets.data.snapshots.row_choice import LIST, ROW, WEIGHT, ChosenRows
from ml_assets.data.snapshots.shards import MEMBER_BYTES, ArchiveWriter, Blobs, Rows, write_rows
from ml_assets.data.snapshots.spec import SnapshotError
from ml_assets.data.snapshots.split_reader import (
    FITTED,
    MANIFEST,
    REBUILD,
    SPLITS,
    Archive,
    InputSpec,
    Shard,
    ShardChanged,
    Snapshot,
    SourceValues,
    SplitIndex,
    SplitName,
    file_sha256,
    index_name,
    open_snapshot,
    schema_hash,
    verify,
    verify_file,
)
from resources.files import sync, unfinished_folder

_pa: Any = import_module("pyarrow")  # it ships no types; `Any` keeps the rest of the module strict
_parquet: Any = import_module("pyarrow.parquet")
_COLUMN = "row"
"""Column of an index file."""
SHARD_BYTES = 128 * 2**20
"""Approximate bytes of a shard: large enough to stream, small enough to map, shuffle and send alone."""


def build_snapshot(
    chosen: ChosenRows,
    fitted: FittedState,
    *,
    source: SourceValues,
    into: Path,
    shard_bytes: int = SHARD_BYTES,
) -> Snapshot:
    """Write `chosen`, encoded by `fitted`, as a snapshot folder in `into`, named by its digest.

    `source` names the values from which the rows came. The same rows, values and state give the same folder, byte for
    byte, so an existing folder stays. Shards of a split differ by at most one row; if rows form lists, by at most one
    list. If rows have blobs, an archive lies beside each shard. Raises `EncodingError` if a column is missing or of the
    wrong kind.
    """
    inputs = input_spec(fitted, chosen.spec.blob, chosen.spec.vocabulary)
    schema = schema_hash(inputs, chosen.spec.label, chosen.spec.weight or "")
    with unfinished_folder(into) as building:
        blobs = _write_archives(building, chosen, fitted, shard_bytes)
        shards = tuple(
            _write_shard(building, split, name, _rows(chosen, part, fitted, blobs.get(name)), schema)
            for split, name, part in _deal(chosen, fitted, shard_bytes)
        )
        snapshot = Snapshot(
            folder=building,
            source=source,
            split_config_hash=chosen.split.config_hash,
            schema_hash=schema,
            fitted_digest=fitted.digest,
            inputs=inputs,
            label=chosen.spec.label,
            weight=chosen.spec.weight or "",
            cutoffs=chosen.spec.cutoffs.in_words,
            index=chosen.index(),
            splits=tuple(
                write_index(building, split, chosen.of(split)[ROW].to_numpy().astype(np.int64))
                for split in SPLITS
            ),
            shards=shards,
        )
        (building / FITTED).write_text(fitted.to_json())
        (building / MANIFEST).write_text(snapshot.to_json())
        return _publish(snapshot, into / snapshot.digest[:16])


def input_spec(fitted: FittedState, blob: str = "", vocabulary: int = 0) -> InputSpec:
    """Return the facts of the fitted state and of the blob column that a model and its preprocessing need."""
    return InputSpec(
        numeric=tuple(column.name for column in fitted.numeric),
        fill=tuple(column.standardised_fill for column in fitted.numeric),
        categorical=tuple(column.name for column in fitted.categorical),
        cardinalities=tuple(column.cardinality for column in fitted.categorical),
        blob=blob,
        classes=fitted.classes,
        vocabulary=vocabulary,
    )


def _deal(
    chosen: ChosenRows, fitted: FittedState, shard_bytes: int
) -> Iterator[tuple[SplitName, str, pl.DataFrame]]:
    """Yield split, name and rows of each shard."""
    for split in SPLITS:
        frame, blob_bytes = chosen.of(split), chosen.blob_bytes(split)
        units = _units(frame)
        row_bytes = 4 * (len(fitted.numeric) + len(fitted.categorical)) + 12 + 4 * (WEIGHT in frame.columns)
        row_bytes += blob_bytes and blob_bytes + MEMBER_BYTES
        shards = min(max(1, round(frame.height * row_bytes / shard_bytes)), len(units))
        for i in range(shards):
            if split == "train":
                # Take every n-th row (or list), so that each shard has rows of the whole window. Then shuffling the
                # shards and the rows inside each is a good shuffle, although a batch rarely mixes shards.
                part = units[i::shards]
            else:
                part = units[len(units) * i // shards : len(units) * (i + 1) // shards]
            rows = part if isinstance(part, np.ndarray) else np.concatenate(part)
            yield split, f"{split}-{i:05d}", frame[rows]


def _units(frame: pl.DataFrame) -> NDArray[np.intp] | list[NDArray[np.intp]]:
    """Return the numbers of the rows of each part of `frame` that no shard divides: a row, or the rows of a list."""
    if LIST not in frame.columns:
        return np.arange(frame.height)
    of_row = frame[LIST].to_numpy()
    by_list = np.argsort(of_row, kind="stable")
    return np.split(by_list, np.flatnonzero(np.diff(of_row[by_list])) + 1)


def _write_archives(
    folder: Path, chosen: ChosenRows, fitted: FittedState, shard_bytes: int
) -> dict[str, Blobs]:
    """Write the blobs of each shard, in one pass over the table; return them by shard name, empty without blobs."""
    if chosen.blob is None:
        return {}
    writers: list[tuple[str, ArchiveWriter]] = []
    writer_of = np.full(int(chosen.frame[ROW].to_numpy()[-1]) + 1, -1)  # of each row of the table
    for _, name, part in _deal(chosen, fitted, shard_bytes):
        writer_of[part[ROW].to_numpy()] = len(writers)
        writers.append((name, ArchiveWriter(folder / f"{name}.tar")))
    for first, blobs in chosen.blobs():
        numbers = writer_of[first : first + len(blobs)]
        for number, (_, writer) in enumerate(writers):
            mine = np.flatnonzero(numbers == number)
            if mine.size:
                writer.add((first + mine).tolist(), blobs.gather(mine).to_list())
    return {name: writer.finish() for name, writer in writers}


def _rows(chosen: ChosenRows, part: pl.DataFrame, fitted: FittedState, blobs: Blobs | None) -> Rows:
    numeric, category = fitted.encode(part)
    rows = part[ROW].to_numpy().astype(np.int64)
    in_table = np.argsort(np.argsort(rows))
    return Rows(
        numeric=numeric,
        category=category,
        label=_labels(part[chosen.spec.label], fitted),
        row=rows,
        lists=part[LIST].to_numpy().astype(np.int64) if LIST in part.columns else None,
        weight=part[WEIGHT].to_numpy().astype(np.float32) if WEIGHT in part.columns else None,
        blobs=None
        if blobs is None
        else blobs.reordered(in_table),  # they were added in the order of the table
    )


def _labels(column: pl.Series, fitted: FittedState) -> NDArray[np.float32]:
    """Return the labels, or the numbers of their classes, which float32 holds exactly."""
    numbers = class_ids(column, fitted.classes) if fitted.classes else column
    return numbers.cast(pl.Float32).to_numpy()


def _write_shard(folder: Path, split: SplitName, name: str, rows: Rows, schema: str) -> Shard:
    path, archive = folder / f"{name}.arrow", folder / f"{name}.tar"
    write_rows(path, rows, schema)
    return Shard(
        split=split,
        path=path.name,
        sha256=file_sha256(path),
        rows=len(rows),
        lists=None if rows.lists is None else len(np.unique(rows.lists)),
        bytes=path.stat().st_size,
        blobs=None
        if rows.blobs is None
        else Archive(path=archive.name, sha256=file_sha256(archive), bytes=archive.stat().st_size),
    )


def _publish(snapshot: Snapshot, folder: Path) -> Snapshot:
    """Give the folder its final name. A complete folder of that name stays (another run was faster)."""
    for path in snapshot.folder.iterdir():
        sync(path)
    try:
        snapshot.folder.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # for a folder that is not empty
            raise
        if not _is_whole(folder, snapshot):
            shutil.rmtree(folder)
            snapshot.folder.rename(folder)
    return open_snapshot(folder, snapshot.digest)


def _is_whole(folder: Path, snapshot: Snapshot) -> bool:
    try:
        found = open_snapshot(folder, snapshot.digest)
        verify(found, snapshot.shards)
        fitted_of(found)
        for index in found.splits:
            verify_file(folder / index.path, index)
    except ShardChanged:
        return False
    return True


def write_index(folder: Path, split: SplitName, rows: NDArray[np.int64]) -> SplitIndex:
    """Write the index of a split: ascending row numbers of the table, 0-based."""
    path = folder / index_name(split)
    table = _pa.table({_COLUMN: _pa.array(rows, _pa.int64())})
    encoding = {_COLUMN: "DELTA_BINARY_PACKED"}
    _parquet.write_table(table, path, use_dictionary=False, column_encoding=encoding, compression="zstd")
    return SplitIndex(
        split=split, path=path.name, sha256=file_sha256(path), rows=len(rows), bytes=path.stat().st_size
    )


def read_index(snapshot: Snapshot, split: SplitName) -> NDArray[np.int64]:
    """Return the row numbers of a split, `[rows]`, ascending. `ShardChanged` if the file differs from the manifest."""
    index = snapshot.index_of(split)
    path = snapshot.folder / index.path
    verify_file(path, index)
    rows: NDArray[np.int64] = _parquet.read_table(path)[_COLUMN].to_numpy()
    return rows


def fitted_of(snapshot: Snapshot) -> FittedState:
    """Return the scales, vocabularies and classes of a snapshot.

    Raises `ShardChanged` if the file is not the one whose digest the manifest has: the model was trained on rows that
    the original encoded.
    """
    file = snapshot.folder / FITTED
    try:
        fitted = FittedState.from_json(file.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardChanged(f"{file} cannot be read: {error}. {REBUILD}") from error
    if fitted.digest != snapshot.fitted_digest:
        raise ShardChanged(
            f"{file} was altered: the manifest says digest {snapshot.fitted_digest[:12]}…, its content gives "
            f"{fitted.digest[:12]}…. {REBUILD}"
        )
    return fitted


def rows_of(table: pl.LazyFrame, snapshot: Snapshot) -> dict[SplitName, pl.DataFrame]:
    """Return split → its rows of `table`, from which `snapshot` was made.

    The rows have the table's columns without binary columns, and `ROW`. They are in the order of the table, as
    `ChosenRows.of` returned them for the snapshot. Raises `ShardChanged` for a damaged index, `SnapshotError` for a
    table that lacks rows.
    """
    schema = table.collect_schema()
    binary = [name for name, dtype in schema.items() if dtype == pl.Binary]
    numbered = table.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64)).drop(binary)
    frame = numbered.collect(engine="streaming" if binary else "auto")
    found: dict[SplitName, pl.DataFrame] = {}
    for split in SPLITS:
        rows = read_index(snapshot, split)
        if len(rows) and rows[-1] >= frame.height:
            raise SnapshotError(
                f"the {split} split has row {rows[-1]}, but the table has {frame.height} rows: the snapshot "
                f"was made from another table. Launch the training again"
            )
        found[split] = frame[rows]
    return found

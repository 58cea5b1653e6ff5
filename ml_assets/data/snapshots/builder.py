"""Builder of a snapshot: turns chosen rows into encoded, balanced shards, index files and their manifest.

The rows of a split are chosen once, when the snapshot is made, and an evaluation reads the rows that its index names.
An index file is one delta-encoded Parquet file, in which row numbers of whole partitions take almost no space. Here:
the number of shards, writing a folder that is either complete or absent, and reading the fitted state back. Not here:
choosing rows and fitting (row_choice), the rows of a shard (scatter, gather), the rows for training (split_reader) and
for an evaluation (split_rows).
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.gather import Gathering, gather, gather_orders, scattered_files
from ml_assets.data.snapshots.partitions import task_names
from ml_assets.data.snapshots.row_choice import ChosenRows
from ml_assets.data.snapshots.scatter import Cut, Scatter, ShardLayout, scatter, taken_file
from ml_assets.data.snapshots.shards import MEMBER_BYTES
from ml_assets.data.snapshots.split_reader import (
    FITTED,
    MANIFEST,
    REBUILD,
    SPLITS,
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
from ml_assets.data.snapshots.survey import PASS_ERRORS
from resources.disk import require_room
from resources.files import sync, unfinished_folder
from resources.pool import HERE, PartitionPool, raising_as_here
from resources.pool.exchange import Exchange, OpenExchange, folder_exchange
from resources.pool.shared import Shared

_pa: Any = import_module("pyarrow")  # it ships no types; `Any` keeps the rest of the module strict
_parquet: Any = import_module("pyarrow.parquet")
_COLUMN = "row"
"""Column of an index file."""
_ROW_GROUP = 2**20
"""Rows of a row group of an index file."""
SHARD_BYTES = 128 * 2**20
"""Approximate bytes of a shard: large enough to stream, small enough to map, shuffle and send alone."""


def build_snapshot(
    chosen: ChosenRows,
    *,
    source: SourceValues,
    into: Path,
    shard_bytes: int = SHARD_BYTES,
    pool: PartitionPool = HERE,
    here: PartitionPool = HERE,
    exchange: OpenExchange = folder_exchange,
) -> Snapshot:
    """Write `chosen`, encoded by its fitted state, as a snapshot folder in `into`, named by its digest.

    `source` names the values from which the rows came. The same rows, values and state give the same folder, byte for
    byte, so an existing folder stays. Shards of a split differ by at most one row; if rows form lists, by at most one
    list. If rows have blobs, an archive lies beside each shard. Partitions are tasks of `pool`, whose files come by way
    of `exchange`; shards are tasks of `here`, whose workers see the files of this machine: each reads a piece of every
    partition. A worker holds one of them in memory. Raises `EncodingError` if float32 cannot hold a standardised
    number, `DiskFull`, and what `PartitionPool.map` raises.
    """
    fitted = chosen.fitted
    inputs = input_spec(fitted, chosen.spec.blob, chosen.spec.vocabulary)
    schema = schema_hash(inputs, chosen.spec.label, chosen.spec.weight or "")
    layout = _layout(chosen, shard_bytes)
    with unfinished_folder(into) as building:
        require_room(into, _bytes_needed(chosen, layout))
        with exchange(into) as files:
            orders = dict(_orders(chosen, Shared(layout, files), files))
            sources = tuple(order.to for order in orders.values())
            with raising_as_here(*PASS_ERRORS):
                for _ in pool.map(scatter, orders):
                    pass
            with files.here(scattered_files(layout, sources), into) as near:
                origin = Gathering(layout=layout, sources=sources, schema=schema, exchange=near)
                gathers = {one.name: one for one in gather_orders(Shared(origin, near))}
                shards: list[Shard] = []
                with raising_as_here(*PASS_ERRORS):
                    for some in here.map(gather, gathers):
                        shards += some
                        _take(near, [file.path for shard in some for file in shard.files], building)
            splits = tuple(write_index(building, split, _taken(chosen, files, split)) for split in SPLITS)
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
            splits=splits,
            shards=tuple(shards),
        )
        (building / FITTED).write_text(fitted.to_json())
        (building / MANIFEST).write_text(snapshot.to_json())
        return _publish(snapshot, into / snapshot.digest[:16])


def input_spec(fitted: FittedState, blob: str = "", vocabulary: int = 0) -> InputSpec:
    """Return the facts of the fitted state and of the blob column that a model and its preprocessing need."""
    return InputSpec(
        numeric=tuple(column.name for column in fitted.numeric),
        fill=tuple(column.standardised_fill for column in fitted.numeric),
        quantiles=tuple(column.standardised_quantiles for column in fitted.numeric),
        means=tuple(column.mean for column in fitted.numeric),
        scales=tuple(column.scale for column in fitted.numeric),
        categorical=tuple(column.name for column in fitted.categorical),
        cardinalities=tuple(column.cardinality for column in fitted.categorical),
        blob=blob,
        classes=fitted.classes,
        vocabulary=vocabulary,
        level=fitted.label.level,
        spread=fitted.label.spread,
    )


def _layout(chosen: ChosenRows, shard_bytes: int) -> ShardLayout:
    """Return the shards of each split: as many as its bytes need, but at most one for each row or list."""
    fitted, cuts = chosen.fitted, dict[SplitName, Cut]()
    for split in SPLITS:
        row_bytes = (
            4 * (len(fitted.numeric) + len(fitted.categorical)) + 12 + 4 * (chosen.spec.weight is not None)
        )
        blob_bytes = chosen.blob_bytes(split)
        row_bytes += blob_bytes and blob_bytes + MEMBER_BYTES
        units = chosen.units(split)
        shards = min(max(1, round(chosen.rows(split) * row_bytes / shard_bytes)), units)
        cuts[split] = Cut(units=units, shards=shards, before=sum(cut.shards for cut in cuts.values()))
    return ShardLayout(spec=chosen.spec, split=chosen.split, weights=chosen.weights, fitted=fitted, cuts=cuts)


def _bytes_needed(chosen: ChosenRows, layout: ShardLayout) -> int:
    """Return the bytes of a snapshot while it is built: its rows and blobs twice, and places of shards."""
    rows = sum(chosen.rows(split) for split in SPLITS)
    blobs = sum(sum(one.archive_bytes.values()) for one in chosen.facts)
    heads = 8 * (layout.shards + 1) * len(chosen.partitions) * (2 if chosen.spec.blob else 1)
    return 2 * (rows * layout.record.itemsize + blobs) + heads


def _orders(
    chosen: ChosenRows, shared: Shared[ShardLayout], exchange: Exchange
) -> Iterator[tuple[str, Scatter]]:
    """Yield name and order of each partition that has taken rows."""
    units = dict.fromkeys(SPLITS, 0)
    named = zip(task_names(chosen.partitions), chosen.partitions, chosen.facts, chosen.begins, strict=True)
    for number, (name, partition, facts, begin) in enumerate(named):
        if facts.taken:
            order = Scatter(
                partition=partition,
                shared=shared,
                begin=begin,
                units=dict(units),
                exchange=exchange,
                to=_name_of(number),
            )
            yield name, order
        for split, more in facts.units.items():
            units[split] += more


def _name_of(partition: int) -> str:
    return f"{partition:06d}"


def _take(exchange: Exchange, names: Sequence[str], folder: Path) -> None:
    """Move files of workers to `folder`."""
    with exchange.receive(names) as paths:
        for name, path in zip(names, paths, strict=True):
            try:
                (folder / name).hardlink_to(path)
            except OSError:  # another disk, or one without hard links, such as SMB
                shutil.copyfile(path, folder / name)
    exchange.remove(names)


def _taken(chosen: ChosenRows, exchange: Exchange, split: SplitName) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the rows of a split, partition by partition."""
    for number, facts in enumerate(chosen.facts):
        if facts.taken.get(split):
            with exchange.receive([taken_file(_name_of(number), split)]) as (path,):
                yield np.fromfile(path, dtype=np.int64)


def _publish(snapshot: Snapshot, folder: Path) -> Snapshot:
    """Give the folder its final name. A complete folder of that name stays, from an earlier run or a faster one. It is
    marked as used now: garbage collection goes by that time."""
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
        os.utime(folder)
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


def write_index(folder: Path, split: SplitName, parts: Iterable[NDArray[np.int64]]) -> SplitIndex:
    """Write the index of a split: ascending row numbers of the table, 0-based, in `parts` of any size."""
    path = folder / index_name(split)
    schema = _pa.schema([(_COLUMN, _pa.int64())])
    encoding = {_COLUMN: "DELTA_BINARY_PACKED"}
    rows, rest = 0, np.empty(0, dtype=np.int64)
    with _parquet.ParquetWriter(
        path, schema, use_dictionary=False, column_encoding=encoding, compression="zstd"
    ) as writer:
        for part in parts:
            rows += len(part)
            rest = np.concatenate([rest, part])
            while len(rest) >= _ROW_GROUP:  # so that the parts leave no trace in the file
                writer.write_table(_pa.table([rest[:_ROW_GROUP]], schema=schema))
                rest = rest[_ROW_GROUP:]
        if len(rest) or not rows:
            writer.write_table(_pa.table([rest], schema=schema))
    return SplitIndex(
        split=split, path=path.name, sha256=file_sha256(path), rows=rows, bytes=path.stat().st_size
    )


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

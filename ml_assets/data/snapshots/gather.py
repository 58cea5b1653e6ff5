"""Pass C of a snapshot: shards, each from the files of all partitions (scatter).

A shard reads a piece of each partition's file. Of many shards, a run is first brought together in one file: so no
pass opens partitions × shards files. A function of one shard or one run: files in, files out. Not here: the manifest
(builder).
"""

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.snapshots.scatter import ShardLayout, blobs_file, in_bytes, rows_file
from ml_assets.data.snapshots.shards import ARCHIVE_END, Blobs, Rows, places_of, write_rows
from ml_assets.data.snapshots.split_reader import Archive, Shard, SplitName, file_sha256
from resources.pool.exchange import Exchange
from resources.pool.shared import Shared

MOST_ALONE = 1000
"""Shards of a snapshot up to which each is written from the files of all partitions."""
RUN = 256
"""Shards of a run: 32 GB beside the files of partitions, while a worker writes them."""
_AT_ONCE = 64 * 2**20
"""Bytes of rows of a run that are brought together at once."""


@dataclass(frozen=True, kw_only=True)
class Scattered:
    """Files of rows in the order of shards: of one partition, or of a run of shards."""

    rows: Path
    blobs: Path | None
    """None: rows have no blobs."""
    first: int = 0
    """Number of the first shard whose place they know."""
    shards: int
    """Shards whose places they know."""

    @property
    def head(self) -> int:
        """Bytes before the first row, or the first blob."""
        return 8 * (self.shards + 1)

    def places(self, path: Path, shards: range) -> NDArray[np.int64]:
        """Return `[shards + 1]`: rows, or bytes of blobs, in front of each of these shards and behind the last one."""
        with path.open("rb", buffering=0) as file:
            read = os.pread(file.fileno(), 8 * (len(shards) + 1), 8 * (shards.start - self.first))
        return np.frombuffer(read, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """Origin and place of all shards."""

    layout: ShardLayout
    sources: tuple[str, ...]
    """Prefixes of the names of the files of all partitions, in their order."""
    schema: str
    """Hash of the schema."""
    exchange: Exchange
    """Way of these files to the task, and of shards to the caller."""


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Order to write a run of shards of a split."""

    shared: Shared[Gathering]
    split: SplitName
    shards: range
    """Numbers of the shards over all splits."""

    def name_of(self, shard: int) -> str:
        """Return the name of a shard's files, without suffix."""
        return f"{self.split}-{shard - self.shared.value.layout.cuts[self.split].before:05d}"

    @property
    def name(self) -> str:
        """Name in errors of a pool."""
        names = [self.name_of(shard) for shard in dict.fromkeys((self.shards[0], self.shards[-1]))]
        return f"shards {' to '.join(names)}"


def gather_orders(shared: Shared[Gathering]) -> Iterator[Gather]:
    """Yield the order of each shard, or of each run of many, in the order of the manifest."""
    layout = shared.value.layout
    at_once = 1 if layout.shards <= MOST_ALONE else RUN
    for split, cut in layout.cuts.items():
        end = cut.before + cut.shards
        for first in range(cut.before, end, at_once):
            yield Gather(shared=shared, split=split, shards=range(first, min(first + at_once, end)))


def gather(order: Gather) -> list[Shard]:
    """Write and send some shards, and their archives if rows have blobs. Raises what `Exchange` raises."""
    with _received(order.shared.value) as sources:
        if len(order.shards) == 1:
            return [_shard(order, shard, sources) for shard in order.shards]
        with _together(order, sources) as source:
            return [_shard(order, shard, [source]) for shard in order.shards]


def scattered_files(layout: ShardLayout, sources: Sequence[str]) -> list[str]:
    """Return the names of the files of all partitions: of their rows, then of their blobs if rows have any."""
    blobs = [blobs_file(one) for one in sources] if layout.spec.blob else []
    return [*map(rows_file, sources), *blobs]


@contextmanager
def _received(origin: Gathering) -> Generator[list[Scattered]]:
    """Yield the files of all partitions."""
    count, shards = len(origin.sources), origin.layout.shards
    with origin.exchange.receive(scattered_files(origin.layout, origin.sources)) as paths:
        rows, blobs = paths[:count], paths[count:] or [None] * count
        yield [
            Scattered(rows=one, blobs=other, shards=shards) for one, other in zip(rows, blobs, strict=True)
        ]


def _shard(order: Gather, shard: int, sources: Sequence[Scattered]) -> Shard:
    origin, name = order.shared.value, order.name_of(shard)
    with ExitStack() as sending:
        path = sending.enter_context(origin.exchange.send(f"{name}.arrow"))
        archive = None
        if origin.layout.spec.blob:
            archive = sending.enter_context(origin.exchange.send(f"{name}.tar"))
        return _write(origin, order.split, name, shard, sources, path, archive)


def _write(
    origin: Gathering,
    split: SplitName,
    name: str,
    shard: int,
    sources: Sequence[Scattered],
    path: Path,
    archive: Path | None,
) -> Shard:
    records = _rows(origin.layout, sources, shard)
    blobs = None
    if archive is not None:
        _write_archive(sources, shard, archive)
        in_table = np.argsort(records["row"])
        places = np.empty((len(records), 2), dtype=np.int64)
        places[in_table] = places_of(records["blob"][in_table])
        blobs = Blobs.map(archive, places)
    fields = records.dtype.names or ()
    rows = Rows(
        numeric=_matrix(records, "numeric", np.float32),
        category=_matrix(records, "category", np.int32),
        label=np.ascontiguousarray(records["label"]),
        row=np.ascontiguousarray(records["row"]),
        lists=np.ascontiguousarray(records["list"]) if "list" in fields else None,
        weight=np.ascontiguousarray(records["weight"]) if "weight" in fields else None,
        blobs=blobs,
    )
    del records
    write_rows(path, rows, origin.schema)
    return Shard(
        split=split,
        path=f"{name}.arrow",
        sha256=file_sha256(path),
        rows=len(rows),
        lists=None if rows.lists is None else len(np.unique(rows.lists)),
        bytes=path.stat().st_size,
        blobs=None
        if archive is None
        else Archive(path=f"{name}.tar", sha256=file_sha256(archive), bytes=archive.stat().st_size),
    )


def _rows(layout: ShardLayout, sources: Sequence[Scattered], shard: int) -> NDArray[np.void]:
    """Return the rows of a shard, in its order."""
    one = range(shard, shard + 1)
    pieces = [(source, source.places(source.rows, one).tolist()) for source in sources]
    return _read(layout, [(source, begin, end) for source, (begin, end) in pieces])


def _read(layout: ShardLayout, pieces: Sequence[tuple[Scattered, int, int]]) -> NDArray[np.void]:
    """Return the rows from a first one to a last one of some files, one after the other."""
    records = np.empty(sum(end - begin for _, begin, end in pieces), dtype=layout.record)
    free = memoryview(cast(Any, records.view(np.uint8)))
    for source, begin, end in pieces:
        if begin == end:
            continue
        with source.rows.open("rb", buffering=0) as file:
            file.seek(source.head + begin * records.itemsize)
            wanted = (end - begin) * records.itemsize
            filled = 0
            while filled < wanted:
                read = file.readinto(free[filled:wanted])
                if not read:
                    raise EOFError(f"{source.rows} ends before its last row")
                filled += read
            free = free[wanted:]
    return records


def _write_archive(sources: Sequence[Scattered], shard: int, archive: Path) -> None:
    with archive.open("wb") as target:
        for source in sources:
            assert source.blobs is not None
            begin, end = source.places(source.blobs, range(shard, shard + 1)).tolist()
            with source.blobs.open("rb") as file:
                _copy(source, file.fileno(), begin, end, target.fileno())
        target.write(ARCHIVE_END)


def _copy(source: Scattered, file: int, begin: int, end: int, target: int) -> None:
    """Write some bytes of blobs of an open file at the position of `target`."""
    while begin < end:
        sent = os.sendfile(target, file, source.head + begin, end - begin)
        if not sent:
            raise EOFError(f"{source.blobs} ends before its last blob")
        begin += sent


@contextmanager
def _together(order: Gather, sources: Sequence[Scattered]) -> Generator[Scattered]:
    """Yield files with the rows of a run of shards of all partitions, which are deleted after the block."""
    layout, shards = order.shared.value.layout, order.shards
    with TemporaryDirectory(prefix=f"{order.name_of(shards[0])}-", dir=sources[0].rows.parent) as folder:
        rows, blobs = Path(folder) / "rows", Path(folder) / "blobs" if layout.spec.blob else None
        found = Scattered(rows=rows, blobs=blobs, first=shards.start, shards=len(shards))
        _bring_rows(layout, sources, shards, found)
        if blobs is not None:
            _bring_blobs(sources, shards, found, blobs)
        yield found


def _bring_rows(layout: ShardLayout, sources: Sequence[Scattered], shards: range, found: Scattered) -> None:
    free = _starts([source.places(source.rows, shards) for source in sources])
    with found.rows.open("wb") as file:
        file.write(in_bytes(free))
        for pieces in _some(sources, shards, max(1, _AT_ONCE // layout.record.itemsize)):
            rows = _read(layout, [(source, int(places[0]), int(places[-1])) for source, places in pieces])
            counts = [np.diff(places) for _, places in pieces]
            shard = np.concatenate([np.repeat(np.arange(len(shards)), one) for one in counts])
            rows = rows.take(np.argsort(shard, kind="stable"))
            ends = np.cumsum(np.sum(counts, axis=0))
            for number, (end, count) in enumerate(zip(ends, np.diff(ends, prepend=0), strict=True)):
                file.seek(found.head + int(free[number]) * layout.record.itemsize)
                file.write(in_bytes(rows[end - count : end]))
                free[number] += count


def _some(
    sources: Sequence[Scattered], shards: range, rows: int
) -> Iterator[list[tuple[Scattered, NDArray[np.int64]]]]:
    """Yield the places of `shards` in all files, those of about `rows` rows at a time."""
    waiting: list[tuple[Scattered, NDArray[np.int64]]] = []
    height = 0
    for source in sources:
        places = source.places(source.rows, shards)
        waiting.append((source, places))
        height += int(places[-1] - places[0])
        if height >= rows:
            yield waiting
            waiting, height = [], 0
    if waiting:
        yield waiting


def _bring_blobs(sources: Sequence[Scattered], shards: range, found: Scattered, to: Path) -> None:
    files = [source.blobs for source in sources if source.blobs is not None]
    places = [source.places(file, shards) for source, file in zip(sources, files, strict=True)]
    free = _starts(places)
    with to.open("wb") as target:
        target.write(in_bytes(free))
        for source, blobs, of_shards in zip(sources, files, places, strict=True):
            with blobs.open("rb") as file:
                for number, (begin, end) in enumerate(pairwise(of_shards.tolist())):
                    target.seek(found.head + int(free[number]))
                    _copy(source, file.fileno(), begin, end, target.fileno())
                    free[number] += end - begin


def _starts(places: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return `[shards + 1]`: places of shards in one file, from those in all files."""
    counts = np.sum([np.diff(one) for one in places], axis=0)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _matrix(records: NDArray[np.void], name: str, dtype: Any) -> NDArray[Any]:
    if name not in (records.dtype.names or ()):
        return np.empty((len(records), 0), dtype=dtype)
    return np.ascontiguousarray(records[name])

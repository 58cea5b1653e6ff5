"""Format of a shard: an Arrow IPC file with one uncompressed record batch, so that a batch is a view, and its blobs.

Columns: `numeric` FixedSizeList<float32>[F], `category` FixedSizeList<int32>[C], `label` float32 and `row` int64. A
matrix is a single column, because reading F columns would cost a stack per batch. Where rows form lists, `list` int64
names the list of a row, whose rows are neighbours. Weighted rows have `weight` float32. Rows with blobs also have
`blob` FixedSizeList<int64>[2]: first byte and number of bytes in the archive beside the file.

An archive, for blobs of 10 KB and more, is a tar file with one uncompressed member per row, in the order of the table.
A member is named by the row's number in the table. Any tool that reads tar reads it. Not here: distributing rows over
shards (builder), verifying the file (split_reader), decoding a blob (the pipeline's `decode`).
"""

import mmap
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

MEMBER_BYTES = 2 * tarfile.BLOCKSIZE
"""Approximate bytes that tar adds to a member: a header, and zeros up to the next block."""
ARCHIVE_END = bytes(2 * tarfile.BLOCKSIZE)
"""Bytes behind the last member of an archive."""


def member_name(row: int) -> str:
    """Return the name of a row's blob in an archive."""
    return f"{row:012d}.bin"


class Blobs:
    """Stored blobs of some rows. A blob is read only when it is requested."""

    def __init__(self, archives: Sequence[mmap.mmap], places: NDArray[np.int64]) -> None:
        """Take mapped archives and `places` `[rows, 3]`: index in `archives`, first byte, number of bytes.

        Raises `ValueError` if an archive ends before its last blob.
        """
        self.archives, self.places = tuple(archives), places
        sizes = np.array([len(archive) for archive in archives], dtype=np.int64)
        if len(places) and (places[:, 1] + places[:, 2] > sizes[places[:, 0]]).any():
            raise ValueError("its archive ends before the last blob does")

    @classmethod
    def map(cls, path: Path, places: NDArray[np.int64]) -> Self:
        """Map one archive; `places` `[rows, 2]`: first byte and number of bytes. Raises `OSError`, `ValueError`."""
        with path.open("rb") as file:
            archive = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls([archive], np.insert(places, 0, 0, axis=1))

    @classmethod
    def concatenate(cls, parts: Iterable[Self]) -> Self:
        """Join the blobs of all `parts`, in order."""
        archives: list[mmap.mmap] = []
        places: list[NDArray[np.int64]] = []
        for part in parts:
            places.append(part.places + np.array([len(archives), 0, 0]))
            archives += part.archives
        return cls(archives, np.concatenate(places))

    def reordered(self, rows: NDArray[np.int64]) -> Self:
        """Return the blobs of these rows, 0-based, in their order."""
        return type(self)(self.archives, self.places[rows])

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: int) -> bytes:
        """Return the blob of a row, 0-based."""
        return next(self.take(np.array([row])))

    def take(self, rows: NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the blobs of these rows, in their order."""
        for archive, first, size in self.places[rows].tolist():
            yield self.archives[archive][first : first + size]


def member_bytes(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the bytes in an archive of blobs of these sizes: a header, and zeros up to the next block."""
    blobs = sizes.astype(np.int64)
    return tarfile.BLOCKSIZE + blobs + -blobs % tarfile.BLOCKSIZE


def member(row: int, content: bytes) -> bytes:
    """Return the member of an archive for the blob of a row of the table; always the same bytes."""
    header = tarfile.TarInfo(member_name(row))  # without time and owner
    header.size = len(content)
    return header.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def places_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `[rows, 2]`, first byte and number of bytes of each blob of an archive; `sizes` in its order."""
    ends = np.cumsum(member_bytes(sizes))
    return np.stack([ends - member_bytes(sizes) + tarfile.BLOCKSIZE, sizes], axis=1)


_pa: Any = import_module("pyarrow")  # it ships no types; `Any` keeps the rest of the module strict


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Arrays of one shard or split, aligned by row; views of a mapped file if possible."""

    numeric: NDArray[np.float32]
    """`[rows, F]`, standardised; NaN where missing."""
    category: NDArray[np.int32]
    """`[rows, C]` ids."""
    label: NDArray[np.float32]
    """`[rows]`: a number, or the number of a class; scripts read numbers of classes as int64."""
    row: NDArray[np.int64]
    """`[rows]`: number of the row in the builder's table (0-based), unique over all splits."""
    lists: NDArray[np.int64] | None = None
    """`[rows]`: number of the row's list, unique over all splits; its rows are neighbours. None if rows do not form
    lists."""
    weight: NDArray[np.float32] | None = None
    """`[rows]`: weight of the row, above 0 and 1 on average over the split; None if each row counts once."""
    blobs: Blobs | None = None
    """`[rows]`; None if rows have no blobs."""

    def __len__(self) -> int:
        return len(self.label)


def write_rows(path: Path, rows: Rows, schema_hash: str) -> None:
    """Write one shard; the same rows give the same bytes."""
    columns = {
        "numeric": _lists(rows.numeric, _pa.float32()),
        "category": _lists(rows.category, _pa.int32()),
        "label": _pa.array(rows.label, _pa.float32()),
        "row": _pa.array(rows.row, _pa.int64()),
        "list": None if rows.lists is None else _pa.array(rows.lists, _pa.int64()),
        "weight": None if rows.weight is None else _pa.array(rows.weight, _pa.float32()),
        "blob": None if rows.blobs is None else _lists(rows.blobs.places[:, 1:], _pa.int64()),
    }
    batch = _pa.record_batch({name: column for name, column in columns.items() if column is not None})
    batch = batch.replace_schema_metadata({"schema_hash": schema_hash})
    with _pa.OSFile(str(path), "wb") as sink, _pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def map_rows(
    path: Path, numeric: int, categorical: int, schema_hash: str, archive: Path | None = None
) -> Rows:
    """Memory-map one shard with `numeric` and `categorical` columns, and the `archive` of its blobs, if any.

    Data is read only when it is used. Raises `OSError` for a file that cannot be opened, `ValueError` for another
    schema or format.
    """
    # The arrays keep the mapping alive: the file may be renamed or unlinked meanwhile.
    with _pa.memory_map(str(path)) as source:
        file = _pa.ipc.open_file(source)
        metadata: dict[bytes, bytes] = file.schema.metadata or {}
        written = metadata.get(b"schema_hash", b"").decode()
        if written != schema_hash:
            raise ValueError(f"its schema is {written[:12]}…, expected {schema_hash[:12]}…")
        batch = file.get_batch(0)
    return Rows(
        numeric=_matrix(batch, "numeric", numeric, np.float32),
        category=_matrix(batch, "category", categorical, np.int32),
        label=_values(batch.column("label"), np.float32),
        row=_values(batch.column("row"), np.int64),
        lists=_values(batch.column("list"), np.int64) if "list" in batch.schema.names else None,
        weight=_values(batch.column("weight"), np.float32) if "weight" in batch.schema.names else None,
        blobs=None if archive is None else Blobs.map(archive, _matrix(batch, "blob", 2, np.int64)),
    )


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Join the rows of all `parts`, in order, in memory; blobs stay in their archives."""
    lists = [part.lists for part in parts if part.lists is not None]
    weights = [part.weight for part in parts if part.weight is not None]
    blobs = [part.blobs for part in parts if part.blobs is not None]
    return Rows(
        numeric=np.concatenate([part.numeric for part in parts]),
        category=np.concatenate([part.category for part in parts]),
        label=np.concatenate([part.label for part in parts]),
        row=np.concatenate([part.row for part in parts]),
        lists=np.concatenate(lists) if lists else None,
        weight=np.concatenate(weights) if weights else None,
        blobs=Blobs.concatenate(blobs) if blobs else None,
    )


def _lists(matrix: NDArray[Any], dtype: Any) -> Any:
    width = matrix.shape[1]
    if width == 0:  # leave the column out: the number of rows cannot be inferred from lists of size 0
        return None
    return _pa.FixedSizeListArray.from_arrays(_pa.array(matrix.reshape(-1), dtype), width)


def _matrix(batch: Any, column: str, width: int, dtype: Any) -> NDArray[Any]:
    if width == 0:
        return np.empty((batch.num_rows, 0), dtype=dtype)
    return _values(batch.column(column).flatten(), dtype).reshape(batch.num_rows, width)


def _values(column: Any, dtype: Any) -> NDArray[Any]:
    """Return a view of an array without nulls. pyarrow's `to_numpy` would import pandas: a second in every rank."""
    return np.frombuffer(column.buffers()[1], dtype=dtype, count=len(column))

"""Batches as tensors, gathered from memory-mapped shards without a data loader.

Here: one gather per shard, batch and column group; blobs, decoded to a tensor by the pipeline's own function in the
order of the rows; importing the functions that a job names. Not here: the choice of rows (order), gathering ahead of
the step (prefetcher), the files (snapshots.split_reader), looking functions up when a `defs.yaml` is loaded
(steps.declared_functions), decoding for a served model (release.runtime, which imports nothing of the project).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)
# (the annotations of torch and safetensors are partial)

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby, pairwise
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ml_assets.data.snapshots.shards import member_name
from ml_assets.data.snapshots.split_reader import InputSpec, Rows, Snapshot, SplitName
from ml_assets.model.training.data.order import ShardSlice
from ml_assets.model.training.data.streaming import StreamedShards
from resources.job.errors import BadConfiguration
from resources.job.job import TrainingJob
from resources.words import place_of


def function_named(path: str, what: str) -> Callable[..., Any]:
    """Return the function at `package.module.function`; `what` is its role in an error message. Raises
    `BadConfiguration` if the import fails."""
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module_name), name)
    except Exception as error:  # an error in the pipeline's own module would repeat in another attempt
        raise BadConfiguration(
            f"{what} {path!r} cannot be imported: {type(error).__name__}: {error}{place_of(error)}. "
            "Write package.module.function, importable where the job was launched"
        ) from error


Decode = Callable[[bytes], Any]
"""The stored bytes → an array, of one shape and dtype for all rows. It must depend on the bytes alone. Random
operations (crops, noise) belong in the model's forward, whose randomness is repeatable. Several threads call it."""


def decode_of(job: TrainingJob, inputs: InputSpec) -> Decode | None:
    """Return the function that decodes blobs; None if rows have no blobs. Raises `BadConfiguration` if the job
    names no decoder.
    """
    if not inputs.blob:
        return None
    if not job.decode:
        raise BadConfiguration(
            f"rows have blobs ({inputs.blob}), and the job does not say how to read one: name a function "
            "`decode(content: bytes)` that returns an array (features.blob.decode), or leave the column out"
        )
    return function_named(job.decode, "decode")


class Decoder:
    """Decodes blobs on `threads` threads; with a single thread, on the caller's.

    `pin` puts them into pinned memory, from which the copy to a GPU runs while the host continues.
    """

    def __init__(self, decode: Decode, threads: int = 1, *, pin: bool = False) -> None:
        self._decode, self._pin = decode, pin
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode") if threads > 1 else None

    def decoded(self, contents: Iterable[tuple[int, bytes]], count: int) -> torch.Tensor:
        """Return `[count, ...]`: the blobs of `contents` (row of the table, stored bytes), in order; at least one.

        Raises `BadConfiguration` if a blob cannot be decoded, or differs from the first in shape or dtype.
        """
        room, filled = torch.empty(0), np.empty(0)
        for i, (row, array) in enumerate((self._pool.map if self._pool else map)(self._array, contents)):
            if not i:
                room = torch.empty((count, *array.shape), dtype=_type(array, row), pin_memory=self._pin)
                filled: NDArray[Any] = room.numpy()
            elif array.shape != filled.shape[1:] or array.dtype != filled.dtype:
                raise BadConfiguration(
                    f"the blob of row {row} was decoded to {array.dtype}{list(array.shape)}, one before it to "
                    f"{filled.dtype}{list(filled.shape[1:])}: let `decode` crop or pad them to one shape"
                )
            filled[i] = array
        return room

    def _array(self, stored: tuple[int, bytes]) -> tuple[int, NDArray[Any]]:
        row, content = stored
        try:
            return row, np.asarray(self._decode(content))
        except Exception as error:  # the user's function may raise any error
            raise BadConfiguration(
                f"`decode` failed on the blob of row {row} ({len(content)} bytes, {member_name(row)} in an archive "
                f"of the snapshot) with {type(error).__name__}: {error}. Fix `decode`, or make such blobs null in the "
                "feature table: rows without one are left out"
            ) from error


def _type(array: NDArray[Any], row: int) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, array.dtype)).dtype
    except (TypeError, ValueError) as error:  # objects, or another byte order
        raise BadConfiguration(
            f"the blob of row {row} was decoded to {array.dtype}, which no tensor holds: let `decode` return numbers"
        ) from error


_Run: TypeAlias = tuple[Rows, NDArray[np.int64]]
"""A shard, and the numbers of the rows to take from it."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows as tensors. B rows, F numeric columns, C categorical columns."""

    numeric: torch.Tensor
    """`[B, F]` float32, NaN where missing."""
    category: torch.Tensor
    """`[B, C]` int64."""
    label: torch.Tensor
    """`[B]` float32."""
    row: NDArray[np.int64]
    """`[B]`: row numbers in the feature table; always in host memory."""
    lists: torch.Tensor | None = None
    """`[B]` int64: number of the row's list, whose rows are neighbours; None if rows do not form lists."""
    weight: torch.Tensor | None = None
    """`[B]` float32: weight of the row, 1 on average over the split; None if each row counts once."""
    blob: torch.Tensor | None = None
    """`[B, ...]`, in the shape and dtype that blobs decode to; None if rows have no blobs."""

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Arguments of a model's forward: the numbers, the categories, and the blobs if there are any."""
        both = (self.numeric, self.category)
        return both if self.blob is None else (*both, self.blob)

    def __len__(self) -> int:
        return len(self.row)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, with blobs as decoded."""
        blob = 0 if self.blob is None else self.blob.nbytes
        return self.numeric.nbytes + self.category.nbytes + self.label.nbytes + blob

    def to(self, device: torch.device) -> Self:
        """Return the same rows on `device`. From pinned memory the copy runs while the host continues."""
        return type(self)(
            numeric=self.numeric.to(device, non_blocking=True),
            category=self.category.to(device, non_blocking=True),
            label=self.label.to(device, non_blocking=True),
            row=self.row,
            lists=None if self.lists is None else self.lists.to(device, non_blocking=True),
            weight=None if self.weight is None else self.weight.to(device, non_blocking=True),
            blob=None if self.blob is None else self.blob.to(device, non_blocking=True),
        )

    def copied(self) -> Self:
        """Return the same rows in memory of their own, so that their alignment depends on nothing else."""
        return type(self)(
            numeric=self.numeric.clone(),
            category=self.category.clone(),
            label=self.label.clone(),
            row=self.row,
            lists=None if self.lists is None else self.lists.clone(),
            weight=None if self.weight is None else self.weight.clone(),
            blob=None if self.blob is None else self.blob.clone(),
        )

    def in_passes(self, passes: int) -> "Sequence[Self]":
        """Return these rows in `passes` parts of as equal sizes as possible, in order; some may be empty. A list stays
        whole: then sizes count lists."""
        begins = np.arange(len(self))
        if self.lists is not None:
            of_row = self.lists.cpu().numpy()
            begins = np.flatnonzero(np.append(True, of_row[1:] != of_row[:-1])[: len(self)])
        ends = np.append(begins, len(self))
        bounds = [int(ends[len(begins) * number // passes]) for number in range(passes + 1)]
        return self.split([last - first for first, last in pairwise(bounds)])

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """Return these rows in parts of `sizes`, in order; the parts are views, without a copy."""
        parts: list[Self] = []
        first = 0
        for size in sizes:
            part = slice(first, first := first + size)
            parts.append(
                type(self)(
                    numeric=self.numeric[part],
                    category=self.category[part],
                    label=self.label[part],
                    row=self.row[part],
                    lists=None if self.lists is None else self.lists[part],
                    weight=None if self.weight is None else self.weight[part],
                    blob=None if self.blob is None else self.blob[part],
                )
            )
        return parts


class SplitReader:
    """Gathers batches from the shards of one split, for `device`.

    `decode` decodes a blob, on `decode_threads` threads. `streamed` provides the shards if they are not in the
    snapshot's folder.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        split: SplitName,
        device: torch.device,
        decode: Decode | None = None,
        streamed: StreamedShards | None = None,
        decode_threads: int = 1,
    ) -> None:
        shards = snapshot.shards_of(split)
        self._streamed = streamed
        self._shards = streamed or [snapshot.map(shard) for shard in shards]
        self._columns = len(snapshot.inputs.numeric), len(snapshot.inputs.categorical)
        self.device = device
        self._decoder = decode and Decoder(decode, decode_threads, pin=self._pins)
        self.shard_units: tuple[int, ...] = tuple(shard.units for shard in shards)
        """Parts of each shard that are never divided: rows, or lists (`Shard.units`)."""
        self.rows = sum(shard.rows for shard in shards)
        self._lists: dict[int, NDArray[np.int64]] = {}
        """Shard → position of the first row of each list, and the number of rows; of shards that were read."""
        self._has_lists = any(shard.lists is not None for shard in shards)
        self._is_weighted = bool(snapshot.weight)
        self._blob_bytes = sum(shard.blobs.bytes for shard in shards if shard.blobs is not None)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a batch; its blob counts as stored, on average."""
        numeric, categorical = self._columns
        labelled = 12 + 4 * self._is_weighted
        return 4 * numeric + 8 * categorical + labelled + self._blob_bytes // max(self.rows, 1)

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit of a batch, on average: a row, or the rows of a list."""
        return self.row_bytes * self.rows // max(sum(self.shard_units), 1)

    @property
    def unit_words(self) -> str:
        """Word for several units in a message: rows, or lists."""
        return "lists" if self._has_lists else "rows"

    @property
    def has_blobs(self) -> bool:
        """True if rows have a blob, which is decoded when the row is gathered."""
        return self._decoder is not None

    def expect(self, shards: Sequence[int]) -> None:
        """Announce the shards that will be read next, in this order."""
        if self._streamed is not None:
            self._streamed.expect(shards)

    def expect_none(self) -> None:
        """Announce that no further shard will be read for now."""
        if self._streamed is not None:
            self._streamed.expect_none()

    def take(self, units: Sequence[ShardSlice]) -> Batch:
        """Return the rows of `units`, in order, on the device."""
        return self.gather(self.rows_of(units)).to(self.device)

    def rows_of(self, units: Sequence[ShardSlice]) -> Sequence[ShardSlice]:
        """Return the rows of `units`, whose numbers are those of lists where rows form lists."""
        return [self._in_rows(each) for each in units] if self._has_lists else units

    def _in_rows(self, lists: ShardSlice) -> ShardSlice:
        if lists.shard not in self._lists:
            of_row = _lists(self._shards[lists.shard])
            begins = np.flatnonzero(of_row[1:] != of_row[:-1]) + 1
            self._lists[lists.shard] = np.concatenate([[0], begins, [len(of_row)]])
        bounds = self._lists[lists.shard]
        first, last = bounds[lists.rows], bounds[lists.rows + 1]
        counts = last - first
        # Row i of the result is row i - (rows of the lists before) of its list.
        before = np.repeat(np.cumsum(counts) - counts, counts)
        return ShardSlice(lists.shard, np.arange(counts.sum()) - before + np.repeat(first, counts))

    def gather(self, slices: Sequence[ShardSlice]) -> Batch:
        """Return the rows `slices` (of `rows_of`), in order, in host memory: pinned if the device is a GPU."""
        runs = [
            (self._shards[shard], np.concatenate([each.rows for each in run]))
            for shard, run in groupby(slices, key=lambda each: each.shard)
        ]
        numeric_columns, categorical_columns = self._columns
        row = np.empty(sum(len(rows) for _, rows in runs), dtype=np.int64)
        numeric = self._room((len(row), numeric_columns), torch.float32)
        category = self._room((len(row), categorical_columns), torch.int64)
        label = self._room((len(row),), torch.float32)
        _fill(numeric.numpy(), [(shard.numeric, rows) for shard, rows in runs])
        _fill(category.numpy(), [(shard.category, rows) for shard, rows in runs])
        _fill(label.numpy(), [(shard.label, rows) for shard, rows in runs])
        _fill(row, [(shard.row, rows) for shard, rows in runs])
        lists = None
        if self._has_lists:
            lists = self._room((len(row),), torch.int64)
            _fill(lists.numpy(), [(_lists(shard), rows) for shard, rows in runs])
        weight = None
        if self._is_weighted:
            weight = self._room((len(row),), torch.float32)
            _fill(weight.numpy(), [(_weight(shard), rows) for shard, rows in runs])
        blob = None if self._decoder is None else self._decoded(self._decoder, runs)
        return Batch(
            numeric=numeric,
            category=category,
            label=label,
            row=row,
            lists=lists,
            weight=weight,
            blob=blob,
        )

    def _decoded(self, decoder: Decoder, runs: Sequence[_Run]) -> torch.Tensor:
        count = sum(len(rows) for _, rows in runs)
        # An empty batch has blobs of the same shape, so decode any blob to learn that shape.
        some = runs if count else [(self._shards[0], np.zeros(1, dtype=np.int64))]
        return decoder.decoded(_stored(some), max(count, 1))[:count]

    @property
    def _pins(self) -> bool:
        return self.device.type == "cuda"

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._pins)


def _lists(shard: Rows) -> NDArray[np.int64]:
    if shard.lists is None:
        raise ValueError("these rows form no lists")
    return shard.lists


def _weight(shard: Rows) -> NDArray[np.float32]:
    if shard.weight is None:
        raise ValueError("these rows have no weights")
    return shard.weight


def _stored(runs: Sequence[_Run]) -> Iterator[tuple[int, bytes]]:
    """Yield the row number in the table and the stored blob, for every row of `runs`."""
    for shard, rows in runs:
        if shard.blobs is None:
            raise ValueError("these rows have no blobs")
        yield from zip(shard.row[rows].tolist(), shard.blobs.take(rows), strict=True)


def _fill(room: NDArray[Any], runs: Sequence[tuple[NDArray[Any], NDArray[np.int64]]]) -> None:
    """Copy the rows of all `runs` (array, row numbers) into `room`, one run after the other."""
    first = 0
    for array, rows in runs:
        part = room[first : first + len(rows)]
        if part.dtype == array.dtype:
            # An order only makes row numbers inside the shard. With mode="raise", numpy would check them again, and
            # for that gather into a buffer of its own and copy the buffer.
            array.take(rows, axis=0, out=part, mode="clip")
        else:
            part[...] = array.take(rows, axis=0)
        first += len(rows)

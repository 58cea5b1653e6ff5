"""Blobs decoded from stored bytes to a tensor by the pipeline's own function, in the order of the rows.

Here: one tensor of many blobs, and the errors if that fails. Not here: storage of blobs (snapshots.shards),
decoding ahead of the step (prefetcher), decoding for a served model (release.runtime, which imports nothing of the
project).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ml_assets.data.snapshots.shards import member_name
from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.training.data.functions import function_named
from resources.job.errors import BadConfiguration
from resources.job.job import TrainingJob

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

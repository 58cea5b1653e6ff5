"""Splits of a snapshot in the shapes that scripts read: arrays, tensors, one matrix.

Here: those shapes. Not here: rows in lane order, which the platform's own loop reads (data.prefetcher, data.batches).
"""

# pyright: reportUnknownMemberType=false
# (the annotations of torch are partial)

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.snapshots.split_reader import InputSpec, Rows, ShardChanged, Snapshot, verify
from resources.job.errors import BadConfiguration, InputChanged
from resources.job.job import TrainingJob

if TYPE_CHECKING:
    import torch

ReadableSplit: TypeAlias = Literal["train", "validation"]


def rows_of(snapshot: Snapshot, split: ReadableSplit) -> Rows:
    """Return all rows of a split, verified against the manifest's digests. Labels of classes are int64, places in
    `inputs.classes`: libraries refuse floats there. Raises `InputChanged` if a digest differs, and `BadConfiguration`
    for the holdout."""
    if split not in ("train", "validation"):
        raise BadConfiguration(
            f"a script reads train and validation, not {split!r}: the holdout evaluates its model"
        )
    try:
        verify(snapshot, snapshot.shards_of(split))
        rows = snapshot.read(split)
    except ShardChanged as error:
        raise InputChanged(str(error)) from error
    return replace(rows, label=rows.label.astype(np.int64)) if snapshot.inputs.classes else rows


def tensors_of(rows: Rows, inputs: InputSpec) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return numbers `[rows, F]` float32, standardised and filled, category ids `[rows, C]` int64, labels `[rows]`
    float32, or int64 for classes.
    """
    import torch

    from ml_assets.model.training.data.preprocess import Preprocess

    # Copies: torch must not write to a memory-mapped file.
    numeric = Preprocess(inputs)(torch.from_numpy(rows.numeric.copy()))
    category = torch.from_numpy(rows.category.astype(np.int64))
    return numeric, category, torch.from_numpy(rows.label.copy())


def weights_of(rows: Rows) -> NDArray[np.float32] | None:
    """Return the weight of each row, `[rows]` float32, 1 on average; None if each row counts once."""
    return None if rows.weight is None else rows.weight.copy()


def blobs_of(rows: Rows, job: TrainingJob, inputs: InputSpec, count: int | None = None) -> "torch.Tensor":
    """Return the blobs of all `rows`, or of the first `count` (at least one), in memory.

    `[rows, ...]`, as the pipeline's `decode` returns them. Raises `BadConfiguration` if rows have no blobs, or if a
    blob cannot be decoded.
    """
    from ml_assets.model.training.data.decoding import Decoder, decode_of

    decode, blobs = decode_of(job, inputs), rows.blobs
    if decode is None or blobs is None:
        raise BadConfiguration(
            "rows have no blobs: name their column, and how one is read, in the pipeline (features.blob)"
        )
    chosen = np.arange(len(rows) if count is None else count)
    stored = zip(rows.row[chosen].tolist(), blobs.take(chosen), strict=True)
    return Decoder(decode).decoded(stored, len(chosen))


def matrix_of(rows: Rows) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the matrix `[rows, F + C]` float32 (standardised numbers, NaN where missing, then category ids) and labels
    `[rows]`, float32, or int64 for classes."""
    return np.hstack([rows.numeric, rows.category.astype(np.float32)]), rows.label

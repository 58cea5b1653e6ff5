"""Predictions of a stored model for all rows of a split, part by part: tasks of a pool.

A task reads the columns of its rows from the lake. A worker loads the model once (`loaded_models`). Not here: what the
predictions are compared with (`champion`, `evaluate`), partitions of new rows (`scoring`).
"""

import copyreg
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.snapshots.split_rows import SplitPart, SplitScan
from ml_assets.model.release.runtime import (
    GraphFailed,
    InputRefused,
    PredictionNotFinite,
    RowRefused,
    ServingModel,
)
from ml_assets.model.steps.blobs import has_blobs, names_of, predicted
from ml_assets.model.steps.loaded_models import model_here
from resources.platform import Platform
from resources.pool import HERE, PartitionPool, raising_as_here

_AT_ONCE = 98_304
"""Rows of a split that are predicted at once: 22 MB of 28 columns. It is a multiple of the rows that `ServingModel`
takes from a frame at once. So each run of the graph gets the same rows as if one call predicted all rows, and returns
the same bits."""


@dataclass(frozen=True, kw_only=True)
class SplitWorkers:
    """Workers that open a stored model by its digest. The partitions of a split know where they are stored."""

    platform: Platform
    pool: PartitionPool


@dataclass(frozen=True, kw_only=True)
class PredictionTask:
    """Rows to predict."""

    model: ServingModel
    digest: str
    """Digest of the model's bundle."""
    columns: tuple[str, ...]
    primary_key: tuple[str, ...]
    part: SplitPart
    first: int
    """Place of the first row in the split."""
    workers: SplitWorkers | None
    """None: the task never leaves this process."""

    def __getstate__(self) -> dict[str, Any]:
        """Travel to a worker with a digest in place of the model."""
        assert self.workers is not None
        return {**vars(self), "model": None, "workers": self.workers.platform}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, workers=None, model=model_here(state["workers"], state["digest"]))


def predictions_of(
    model: ServingModel,
    rows: SplitScan,
    primary_key: Sequence[str],
    digest: str = "",
    workers: SplitWorkers | None = None,
) -> NDArray[np.float64]:
    """Return `[rows]` predictions for all rows of a split, which are read a part at a time.

    `workers` may help if the bundle is stored under `digest`; rows with blobs are read in this process. Raises the
    errors of `blobs.predicted`, and what `PartitionPool.map` raises.
    """
    read = [column.name for column in model.inputs]
    if has_blobs(rows.table.collect_schema(), model.blob):
        return predicted(model, rows.read([*read, *primary_key]), rows.table, primary_key)
    known, key = tuple(rows.known(read)), tuple(rows.known(primary_key))
    tasks = {
        f"rows from {number * _AT_ONCE} of the {rows.split} split": PredictionTask(
            model=model,
            digest=digest,
            columns=known,
            primary_key=key,
            part=part,
            first=number * _AT_ONCE,
            workers=workers,
        )
        for number, part in enumerate(rows.split_parts(_AT_ONCE))
    }
    pool = HERE if workers is None else workers.pool
    with raising_as_here(InputRefused, GraphFailed):
        return np.concatenate(list(pool.map(predict, tasks)))


def predict(task: PredictionTask) -> NDArray[np.float64]:
    """Return the predictions of a task. A row that has none is named by its primary key."""
    try:
        return task.model.predict(task.part.read(task.columns))
    except RowRefused as error:
        name = names_of(task.part.read(task.primary_key)[[error.row]], task.primary_key)[0]
        raise error.named(name or f"{task.first + error.row}") from None


def _again(kind: type[Exception], said: str) -> Exception:
    return kind.__new__(kind, said)


def _as_said(error: Exception) -> tuple[Any, tuple[type[Exception], str]]:
    return _again, (type(error), str(error))


for _kind in (RowRefused, PredictionNotFinite, GraphFailed):
    # Their `__init__` takes other arguments than a message, and a bundle's copy of the runtime knows no workers.
    copyreg.pickle(_kind, _as_said)

"""Copies of a state in memory that is kept from one save to the next: fresh memory costs four times as much.

Tensors that lie whole on a rank are copied one by one, at the speed of memory; torch's stager, measured at 1.3 to 1.8
times that, copies what is sharded. Not here: who saves what (parts), when (saving).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

from typing import Any, cast

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from ml_assets.training.parts import State


class Copies:
    """The memory of one job's copies, on the CPU. Each `take` overwrites what the one before gave."""

    def __init__(self, *, pinned: bool) -> None:
        """`pinned` memory takes copies from a GPU faster."""
        self._pinned = pinned
        self._kept: dict[tuple[str, str], torch.Tensor] = {}
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=False,
                use_async_staging=False,  # the next step changes what is copied
                use_non_blocking_copy=pinned,
            )
        )

    def take(self, state: State) -> State:
        """A copy of all values; when it returns, the originals may change."""
        copy: State = {section: {} for section in state}
        others: State = {section: {} for section in state}
        for section, values in state.items():
            for name, value in values.items():
                is_whole = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
                if is_whole:
                    copy[section][name] = self._copied((section, name), value)
                else:
                    others[section][name] = value
        for section, values in cast(State, self._stager.stage(others)).items():  # waits for a GPU, too
            copy[section].update(values)
        return copy

    def _copied(self, key: tuple[str, str], value: torch.Tensor) -> Any:
        kept = self._kept.get(key)
        if kept is None or (kept.shape, kept.dtype) != (value.shape, value.dtype):
            kept = self._kept[key] = torch.empty(value.shape, dtype=value.dtype, pin_memory=self._pinned)
        with torch.no_grad():
            return kept.copy_(value, non_blocking=self._pinned)

"""Copies of a state in memory that is reused for each save: fresh memory costs four times as much.

Plain tensors are copied directly, at the speed of memory. Sharded tensors go through torch's stager, measured at 1.3 to
1.8 times that time. Not here: each rank's share of a save (parts), the time of a save (saving).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)
# `DefaultStager`, the public class around this one, can be used for one save alone in torch 2.11.

from typing import Any, cast

import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.tensor import DTensor

from ml_assets.model.training.checkpoint.parts import State
from ml_assets.model.training.checkpoint.state import ALIKE


class Copies:
    """Reused memory for one job's copies, on the CPU. Each `take` overwrites the previous copy."""

    def __init__(self, *, pinned: bool, rounded: bool) -> None:
        """`pinned` memory copies faster from a GPU; `rounded` copies are bf16 where the original is float32."""
        self._pinned = pinned
        self._rounded = rounded
        self._kept: dict[tuple[str, str], torch.Tensor] = {}
        self._stager = StateDictStager(pin_memory=pinned, share_memory=False)

    def take(self, state: State) -> State:
        """Return a copy of all values; afterwards the originals may change."""
        copy: State = {section: {} for section in state}
        others: State = {section: {} for section in state}
        for section, values in state.items():
            for name, value in values.items():
                dtype = self._dtype(section, value)
                if isinstance(value, DTensor):
                    others[section][name] = value if dtype == value.dtype else value.detach().to(dtype)
                elif isinstance(value, torch.Tensor):
                    copy[section][name] = self._copied((section, name), value, dtype)
                else:
                    others[section][name] = value
        for section, values in cast(State, self._stager.stage(others, non_blocking=self._pinned)).items():
            copy[section].update(values)
        if self._pinned:
            torch.accelerator.synchronize()  # the next step changes the originals
        return copy

    def _dtype(self, section: str, value: Any) -> torch.dtype | None:
        """Return the dtype of the copy. Only values that each step changes a little are rounded: no counters and no
        column scales.
        """
        if not isinstance(value, torch.Tensor):
            return None
        is_many = section in ALIKE and value.dtype == torch.float32 and value.dim() > 0
        return torch.bfloat16 if self._rounded and is_many else value.dtype

    def _copied(self, key: tuple[str, str], value: torch.Tensor, dtype: torch.dtype | None) -> Any:
        kept = self._kept.get(key)
        if kept is None or (kept.shape, kept.dtype) != (value.shape, dtype):
            kept = self._kept[key] = torch.empty(value.shape, dtype=dtype, pin_memory=self._pinned)
        with torch.no_grad():
            return kept.copy_(value, non_blocking=self._pinned)

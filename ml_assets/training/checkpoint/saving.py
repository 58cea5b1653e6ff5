"""Saving while training goes on: the loop waits for a copy in memory, a thread does the rest.

The thread is what `torch.distributed.checkpoint.async_save` would start, with what makes a checkpoint count done in
it, too: rows first, then the parts of all ranks, the marker last. Ranks agree over connections of their own, since
those of the gradients are in use. Not here: what is saved (state), the copy (copies), files (parts, checkpoints).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from ml_assets.training.checkpoint.checkpoints import Checkpoints
from ml_assets.training.checkpoint.copies import Copies
from ml_assets.training.checkpoint.parts import State, share_of, write
from ml_assets.training.checkpoint.state import ALIKE
from ml_assets.training.process.group import Group, PeerFailed
from resources.job.errors import TrainingFailed
from resources.job.setting_parts import CheckpointStorage


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that counts."""

    step: int
    best_step: int
    """Step of the best one by then; 0: none yet."""
    seconds: float
    """From the request until it counted."""
    blocked_seconds: float
    """Seconds for which the loop stood still."""


class Saver:
    """Saves the state of all ranks together, one checkpoint at a time. All methods are for all ranks at once."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        group: Group,
        share: Callable[[State], State] | None = None,
        storage: CheckpointStorage = "fp32",
        *,
        pinned: bool = False,
    ) -> None:
        """`group`: connections that wait long, and that nobody else uses while something is being saved. `share`: what
        this rank writes of a state; by default what `share_of` gives, of a state all ranks have. `pinned`: copies lie
        where a GPU's copy can go on while the host does other things.
        """
        self._checkpoints = checkpoints
        self._share = share or partial(share_of, alike=ALIKE, rank=group.rank, world_size=group.world_size)
        self._group = group
        self._copies = Copies(pinned=pinned, rounded=storage == "bf16")
        self._compressed = storage == "compressed"
        self._has_memory = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[Any] | None = None

    def make_memory(self, state: Callable[[], State]) -> None:
        """Once, when the state has everything it will have: make the memory of its copies, in the background, so that
        the loop stands still for the first save no longer than for the others."""
        if not self._has_memory:
            self._has_memory = True
            share = self._share(state())
            # What it takes while training goes on is worth nothing but the memory it lies in.
            self._saving = self._thread.submit(self._copies.take, share)

    def begin(
        self,
        step: int,
        state: State,
        best_step: int,
        first: Callable[[State], None],
        then: Callable[[Saved], None],
    ) -> None:
        """Copy the state after `step` and begin to save it; what was being saved before is waited for.

        In the thread, `first` is called with this rank's part of the copy, before anything is written; what it raises
        keeps the state from counting. `then` is called on rank 0 once it counts. Raises what `wait` raises.
        """
        began = time.monotonic()
        self.wait()
        copy = self._copies.take(self._share(state))
        blocked = time.monotonic() - began

        def save() -> None:
            self._save(step, copy, best_step, first)
            if self._group.is_first:
                then(
                    Saved(
                        step=step,
                        best_step=best_step,
                        seconds=time.monotonic() - began,
                        blocked_seconds=blocked,
                    )
                )

        self._saving = self._thread.submit(save)

    def wait(self) -> None:
        """Until the checkpoint begun last counts, or its memory is made.

        Raises `StorageFailed` where this rank could not store it, `PeerFailed` where another could not.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    @property
    def has_failed(self) -> bool:
        """True if `wait` would raise; ranks learn of it at nearly, not quite, the same time."""
        return self._saving is not None and self._saving.done() and self._saving.exception() is not None

    def _save(self, step: int, copy: State, best_step: int, first: Callable[[State], None]) -> None:
        group, checkpoints = self._group, self._checkpoints

        def begin() -> None:
            first(copy)
            if group.is_first:
                checkpoints.claim(step)

        def count() -> None:
            if group.is_first:
                checkpoints.count(step, sha256, best_step)

        try:
            group.all_succeed(begin)
            mine = write(copy, partial(checkpoints.create, step), group, compressed=self._compressed)
            sha256 = {name: digest for part in group.gather_objects(mine) for name, digest in part.items()}
            group.all_succeed(count)
        except (TrainingFailed, PeerFailed):
            if group.is_first:
                checkpoints.discard()
            raise

"""Saving while training goes on: the loop waits only for a copy in memory, and a thread does the rest.

The thread replaces that of `torch.distributed.checkpoint.async_save` and also commits the checkpoint: rows first, then
the parts of all ranks, the commit marker last. Its collectives use their own connections, since gradients use the
default ones. Not here: the content of a state (state), the copy (copies), files (parts, checkpoints).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets.model.training.checkpoint.copies import Copies
from ml_assets.model.training.checkpoint.parts import State, share_of, write
from ml_assets.model.training.checkpoint.state import ALIKE
from ml_assets.model.training.process.group import Group, PeerFailed
from resources.job.errors import TrainingFailed
from resources.job.training_settings import CheckpointStorage


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Committed checkpoint."""

    step: int
    best_step: int
    """Step of the best checkpoint at that time; 0: none yet."""
    seconds: float
    """Seconds from the request to the commit."""
    blocked_seconds: float
    """Seconds for which the loop waited."""


class Saver:
    """Saves the state of all ranks together, one checkpoint at a time. All ranks call each method together."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        group: Group,
        share: Callable[[State], State] | None = None,
        storage: CheckpointStorage = "fp32",
        *,
        pinned: bool = False,
    ) -> None:
        """`group`: connections with a long timeout, unused by others during a save. `share`: returns the part of a
        state that this rank writes; by default `share_of`, for a state that all ranks hold. `pinned`: keep copies in
        pinned memory, to which a GPU copies while the host continues.
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
        """Allocate the memory for copies in the background, once, when the state is complete. Then the first save
        blocks the loop no longer than later saves."""
        if not self._has_memory:
            self._has_memory = True
            share = self._share(state())
            # Training goes on during this copy, so its content is useless; only its memory is kept.
            self._saving = self._thread.submit(self._copies.take, share)

    def begin(
        self,
        step: int,
        state: State,
        best_step: int,
        first: Callable[[State], None],
        then: Callable[[Saved], None],
    ) -> None:
        """Wait for the previous save, copy the state after `step`, and begin to save it.

        The thread calls `first` with this rank's part of the copy before any write; an error in `first` prevents the
        commit. After the commit, rank 0 calls `then`. Raises the errors of `wait`.
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
        """Wait until the last save is committed, or its memory is allocated.

        Raises `StorageFailed` if this rank could not store its part, `PeerFailed` if another rank could not.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    @property
    def has_failed(self) -> bool:
        """True if `wait` would raise. Ranks learn of a failure at almost, but not exactly, the same time."""
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

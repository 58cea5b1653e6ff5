"""State of a plain torch loop as one checkpoint for each epoch: modules, optimizers, schedulers, random numbers.

state = LoopState(training, model=model, optimizer=optimizer, scheduler=scheduler)
for epoch in state.epochs(args.epochs):
    ...
    state.save(epoch, validation_loss=loss)

Random numbers of an epoch that do not depend on the epochs before it, so that a resume needs no state of them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import hashlib
import random
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from ml_assets.model.training.script.api import Training


def seed_of_epoch(training: Training, epoch: int) -> None:
    """Seed torch, numpy and random from the job's seed, the number of the epoch and the rank."""
    text = f"{training.job.seed},{epoch},{training.rank}"
    value = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)


_FILE = "state.pt"


class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class LoopState:
    """Saves and restores what a loop needs, for state that is equal on all ranks (DDP, or a single worker).

    Each epoch is seeded from the job's seed, its number and the rank, so a resumed epoch draws the same random numbers
    (torch, numpy, random) as an undisturbed one.
    """

    def __init__(self, training: Training, **parts: _Stateful) -> None:
        """Restore `parts` from the newest checkpoint, if there is one. All have `state_dict` and `load_state_dict`."""
        self._training, self._parts = training, parts
        if training.resumed_from is not None:
            saved = torch.load(training.resumed_from / _FILE, map_location="cpu", weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(saved[name])

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, from 1 to `count`; seed each."""
        for epoch in range(self._training.resumed_step + 1, count + 1):
            seed_of_epoch(self._training, epoch)
            yield epoch

    def save(self, epoch: int, **figures: float) -> None:
        """Log `figures` and save the state after `epoch`. Call it on all ranks; rank 0 saves."""
        self._training.log(epoch, **figures)
        if self._training.rank == 0:
            with self._training.checkpoint(epoch) as folder:
                torch.save({name: part.state_dict() for name, part in self._parts.items()}, folder / _FILE)

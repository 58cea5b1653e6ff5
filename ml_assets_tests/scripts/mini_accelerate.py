"""A small library in accelerate's manner, for `accelerate_style.py`: it owns the process group.

accelerate itself is no requirement of this project. Like it, `end_training` destroys the process group.
"""

from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class MiniAccelerate:
    """The ranks, and what is prepared for them."""

    def __init__(self) -> None:
        distributed.init_process_group("gloo")
        self.rank = distributed.get_rank()
        self._prepared: list[Any] = []

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, data: DataLoader
    ) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
        """The model in DDP, and a loader of this rank's rows."""
        self._prepared = [model, optimizer]
        sampler = DistributedSampler(data.dataset, shuffle=True)
        mine = DataLoader(data.dataset, batch_size=data.batch_size, sampler=sampler)
        return DistributedDataParallel(model), optimizer, mine

    def backward(self, loss: torch.Tensor) -> None:
        """Add up gradients."""
        loss.backward()

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        """`value` of all ranks, `[rank]`."""
        every = [torch.empty_like(value) for _ in range(distributed.get_world_size())]
        distributed.all_gather(every, value)
        return torch.stack(every)

    def save_state(self, folder: Path) -> None:
        """Save what all ranks have alike, once, and each one's random numbers."""
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(torch.get_rng_state(), folder / f"random_states_{self.rank}.pt")
        if self.rank == 0:
            torch.save([part.state_dict() for part in self._prepared], folder / "state.pt")

    def load_state(self, folder: Path) -> None:
        """Inverse of `save_state`."""
        torch.set_rng_state(torch.load(folder / f"random_states_{self.rank}.pt"))
        for part, state in zip(self._prepared, torch.load(folder / "state.pt"), strict=True):
            part.load_state_dict(state)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the module inside a prepared one."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    def end_training(self) -> None:
        """Leave the group."""
        distributed.destroy_process_group()

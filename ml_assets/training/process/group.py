"""The ranks of a job: joining them, and the few things they must agree on.

Here: the process group, the device of a rank, determinism, agreement. Not here: starting the processes
(torchrun), averaging gradients (DistributedDataParallel in the loop).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

import hashlib
import os
import random
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.distributed import distributed_c10d

from resources.job.errors import BadConfiguration, TrainingFailed
from resources.job.job import ExitCode
from resources.job.training_settings import TrainingSettings
from resources.launcher.devices import refuse_few_gpus

_TIMEOUT = timedelta(seconds=120)
"""Timeout of each collective of the gradients: a rank that waits longer ends, and the job resumes from its checkpoint.
"""
_PATIENCE = timedelta(hours=1)
"""Timeout of collectives around I/O, where the fastest rank waits for the slowest. A dead peer is noticed at once."""

_kept: list[object] = []
"""Process groups that must not be freed before this process ends."""

T = TypeVar("T")


_LOST = re.compile(
    r"connection (was likely )?(closed|reset|refused)|broken pipe|ncclRemoteError|timed out waiting",
    re.IGNORECASE,
)


class PeerFailed(Exception):
    """Another rank found a final failure and has reported it; this one ends with the same code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"another rank ended with exit code {code}")
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Group:
    """This process among the workers of a job."""

    rank: int
    world_size: int
    local_rank: int
    """Among the ranks that work in the same folder: all of them, or those of this machine."""
    local_ranks: int
    """Number of ranks on this node."""
    device: torch.device
    process_group: distributed.ProcessGroup | None = None
    """The connections that are used; None: those of the gradients."""

    @property
    def is_first(self) -> bool:
        """Rank 0 writes files and events for all."""
        return self.rank == 0

    def seed(self, *facts: int) -> None:
        """Restart the randomness of this process (dropout) from these integers.

        Not `torch.manual_seed`: on a machine without a GPU each call leaves a stack trace in a growing list.
        """
        text = ",".join(map(str, facts))  # Python's `hash` is not the same on every machine
        value = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        torch.default_generator.manual_seed(value)
        np.random.seed(value % 2**32)  # models draw from these, too
        random.seed(value)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(value)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over the ranks, the same numbers on each of them."""
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(totals, group=self.process_group)
        return totals.tolist()  # waits for the device: what comes back decides what the host does next

    def begin_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """`sum` that nobody waits for now: what it gives is called later, by all ranks at the same place."""
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        work = distributed.all_reduce(totals, group=self.process_group, async_op=True)

        def end() -> list[float]:
            if work is not None:
                work.wait()
            return totals.tolist()

        return end

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite `tensors` by those of rank 0."""
        for tensor in tensors:
            distributed.broadcast(tensor, group=self.process_group, group_src=0)

    def gather(self, value: int) -> list[int]:
        """`value` of every rank, by rank."""
        mine = torch.tensor([value], dtype=torch.int64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        distributed.all_gather(everyone, mine, group=self.process_group)
        return [int(tensor.item()) for tensor in everyone]

    def gather_objects(self, value: T) -> list[T]:
        """`value`, anything that can be pickled, of every rank, by rank."""
        everyone: list[Any] = [None] * self.world_size
        distributed.all_gather_object(everyone, value, group=self.process_group)
        return everyone

    def io_group(self) -> "Group":
        """The same ranks over connections of their own, on the CPU, that wait long for each other: for what takes as
        long as disks and networks do, and for another thread. All ranks have to ask."""
        process_group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        return replace(self, device=torch.device("cpu"), process_group=process_group)

    def from_first(self, value: int) -> int:
        """`value` of rank 0, on every rank."""
        return self.gather(value)[0]

    def all_succeed(self, action: Callable[[], T]) -> T:
        """Do `action` on every rank; where it is a final failure on one of them, none goes on.

        The failing rank raises its own error, the others `PeerFailed` with its exit code: else they would
        wait for it until the timeout, and end with a code that is retried.
        """
        try:
            result = action()
        except TrainingFailed as error:
            self.gather(error.exit_code or 1)
            raise
        code = max(self.gather(ExitCode.DONE))
        if code:
            raise PeerFailed(code)
        return result


def is_lost_peer(error: BaseException | None) -> bool:
    """True if this comes from another rank's end, or was raised while such an error was handled: a connection to it was
    closed, or it did not answer."""
    while error is not None:
        if isinstance(error, distributed.DistNetworkError | distributed.DistStoreError):
            return True
        if isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None:
            return True
        error = error.__cause__ or error.__context__
    return False


@cache
def keep_connections() -> None:
    """Keep every process group that a script destroys in memory until this process ends. For good; call it first.

    DDP often holds the last reference to a destroyed group. It then waits for the threads of the group with Python's
    lock in its hand, which one of them needs to let go of a tensor: 3 of 6 runs of accelerate's example hung.
    """
    destroy = distributed_c10d.destroy_process_group

    @wraps(destroy)
    def keeping(group: distributed.ProcessGroup | None = None) -> None:
        _kept.extend(distributed_c10d._world.pg_map)  # pyright: ignore - nothing public names them all
        destroy(group)

    distributed.destroy_process_group = distributed_c10d.destroy_process_group = keeping


@contextmanager
def join_group(settings: TrainingSettings, *, folder_each_node: bool = False) -> Generator[Group]:
    """Meet the other ranks (addresses come from torchrun's environment) and make arithmetic repeatable.

    All ranks work in one folder, or those of each node in one of its own (`folder_each_node`). A rank uses its own
    GPU, or one CPU thread where the machine has no GPU or `device` is `cpu`. Ranks may be fewer than `workers`, where a
    node is missing. Raises `BadConfiguration` for more ranks than that, and for fewer GPUs than ranks. After an error
    the group is left as it is: the process has to end.
    """
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    uses_gpus = settings.device == "auto" and torch.cuda.is_available()
    gpus = torch.cuda.device_count() if uses_gpus else 0
    refuse_few_gpus(gpus, local_ranks, int(os.environ["WORLD_SIZE"]) // local_ranks)
    on_gpu = gpus > 0
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # another number of threads adds up in another order: other bits
    is_bitwise = settings.determinism == "bitwise"
    # Without `bitwise` a GPU uses its fastest kernels, and an operation that has no deterministic one still runs.
    torch.use_deterministic_algorithms(is_bitwise or not on_gpu, warn_only=not is_bitwise)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=_TIMEOUT)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    group = Group(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank if folder_each_node else rank,
        local_ranks=local_ranks if folder_each_node else world_size,
        device=device,
    )
    if group.world_size > settings.workers:
        raise BadConfiguration(
            f"{group.world_size} ranks were started for {settings.workers} workers: start a job by its launcher"
        )
    yield group
    distributed.barrier()  # nobody leaves, and takes connections along, while another still needs them
    distributed.destroy_process_group()

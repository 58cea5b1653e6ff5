"""Process group of a job: joining the ranks, and agreement among them.

Here: the process group, a rank's device, determinism, small collectives. Not here: starting the processes (node.agent),
averaging gradients (training.gradients).

The ranks also agree on facts that only some of them know: a stop was requested, or a save is due. An exchange after
every step would cost each step a network round trip. The ranks exchange about every 0.1 s instead, or
after each step if a step takes longer. Rank 0 computes the next step to exchange at, from the pace of the last steps,
and all ranks receive it. No rank waits for an answer: it arrives during the next step and applies after that step.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
from resources.launcher.protocol import refuse_few_gpus

_TIMEOUT = timedelta(seconds=120)
"""Timeout of each gradient collective. A rank that waits longer ends, and the job resumes from its last checkpoint."""
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
    """Another rank reported a final failure; this rank ends with the same exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"another rank ended with exit code {code}")
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Group:
    """This process among the workers of a job."""

    rank: int
    world_size: int
    local_rank: int
    """Rank among those that share this folder: all ranks, or the ranks of this node."""
    local_ranks: int
    """Number of ranks on this node."""
    device: torch.device
    process_group: distributed.ProcessGroup | None = None
    """Connections for collectives. None means the default group, which gradients use."""

    @property
    def is_first(self) -> bool:
        """True on rank 0, which writes files and events for all ranks."""
        return self.rank == 0

    def seed(self, *facts: int) -> None:
        """Seed the random generators of this process (for dropout) from these integers.

        Does not call `torch.manual_seed`: without a GPU, each call appends a stack trace to a list that never shrinks.
        """
        text = ",".join(map(str, facts))  # Python's `hash` is not the same on every machine
        value = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        torch.default_generator.manual_seed(value)
        np.random.seed(value % 2**32)  # models may draw from numpy and random too
        random.seed(value)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(value)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return element-wise sums over the ranks; every rank gets the same numbers."""
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(totals, group=self.process_group)
        return totals.tolist()  # waits for the device: the host decides by these numbers

    def begin_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Start `sum` without waiting. Return a function that waits for the sums; all ranks must call it at the same
        place."""
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        work = distributed.all_reduce(totals, group=self.process_group, async_op=True)

        def end() -> list[float]:
            if work is not None:
                work.wait()
            return totals.tolist()

        return end

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite `tensors` with those of rank 0."""
        for tensor in tensors:
            distributed.broadcast(tensor, group=self.process_group, group_src=0)

    def gather(self, value: int) -> list[int]:
        """Return `value` of every rank, ordered by rank."""
        mine = torch.tensor([value], dtype=torch.int64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        distributed.all_gather(everyone, mine, group=self.process_group)
        return [int(tensor.item()) for tensor in everyone]

    def gather_objects(self, value: T) -> list[T]:
        """Return `value` of every rank, ordered by rank. `value` must be picklable."""
        everyone: list[Any] = [None] * self.world_size
        distributed.all_gather_object(everyone, value, group=self.process_group)
        return everyone

    def io_group(self) -> "Group":
        """Return a second gloo group over the same ranks with a one-hour timeout, for I/O and the checkpoint thread.
        Collective call: all ranks must make it."""
        process_group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        return replace(self, device=torch.device("cpu"), process_group=process_group)

    def from_first(self, value: int) -> int:
        """Return rank 0's `value` on every rank."""
        return self.gather(value)[0]

    def all_succeed(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank; if it fails for good on one rank, no rank continues.

        The failing rank raises its own error, the others `PeerFailed` with its exit code. Otherwise the others would
        wait for it until the timeout, and end with a code that the launcher retries.
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
    """Return True if another rank's end caused this error: its connection closed, or it did not answer. Also looks
    at the errors that were being handled when this one was raised."""
    return any(
        isinstance(one, distributed.DistNetworkError | distributed.DistStoreError)
        or (isinstance(one, RuntimeError) and _LOST.search(str(one)) is not None)
        for one in chain_of(error)
    )


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error` and the errors that led to it, each once: `raise first from last` may close a circle."""
    seen: list[BaseException] = []
    while error is not None and not any(error is one for one in seen):
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


@cache
def keep_connections() -> None:
    """Keep every process group that a script destroys in memory until this process ends. Call it before any script
    code. It cannot be undone.

    DDP often holds the last reference to a destroyed group. It then waits for the group's threads while it holds the
    GIL, and a thread needs the GIL to free a tensor: 3 of 6 runs of accelerate's example hung.
    """
    destroy = distributed_c10d.destroy_process_group

    @wraps(destroy)
    def keeping(group: distributed.ProcessGroup | None = None) -> None:
        _kept.extend(distributed_c10d._world.pg_map)  # pyright: ignore - nothing public names them all
        destroy(group)

    distributed.destroy_process_group = distributed_c10d.destroy_process_group = keeping


@contextmanager
def join_group(settings: TrainingSettings, *, folder_each_node: bool = False) -> Generator[Group]:
    """Join the other ranks (torchrun's environment has the addresses) and make arithmetic repeatable.

    All ranks share one folder, or each node has its own (`folder_each_node`). A rank uses one GPU, or one CPU thread
    if the machine has no GPU or `device` is `cpu`. Fewer ranks than `workers` may join, if a node is missing. Raises
    `BadConfiguration` for more ranks than `workers`, and for fewer GPUs than ranks. After an error the group stays as
    it is: the process has to end.
    """
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    uses_gpus = settings.device == "auto" and torch.cuda.is_available()
    gpus = torch.cuda.device_count() if uses_gpus else 0
    refuse_few_gpus(gpus, local_ranks, int(os.environ["WORLD_SIZE"]) // local_ranks)
    on_gpu = gpus > 0
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # another number of threads sums in another order and gives other bits
    is_bitwise = settings.determinism == "bitwise"
    # Without `bitwise`, a GPU uses its fastest kernels, and operations without a deterministic kernel still run.
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
            f"{group.world_size} ranks were started for {settings.workers} workers: start a job with its launcher"
        )
    yield group
    distributed.barrier()  # a rank that left early would close connections that others still use
    distributed.destroy_process_group()


_EVERY_SECONDS = 0.1
_MOST_STEPS = 20
"""Most steps between two exchanges, so that a training that suddenly slows down still notices a stop request."""


class Agreement:
    """Joint decisions in a loop that all ranks run equally often."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._steps = 0
        self._asked, self._next = 0, 1
        self._began = time.monotonic()
        self._answer: Callable[[], list[float]] | None = None

    def step(self, *, stops: bool, saves: bool) -> tuple[bool, bool]:
        """Return two flags: any rank was asked to stop, and any rank has a save due. Call it after each step.

        The answer is the same on every rank and describes the state one step ago. It is (False, False) between
        exchanges.
        """
        self._steps += 1
        any_stops = any_saves = False
        if self._answer is not None:
            stopping, saving, further = self._answer()
            any_stops, any_saves = stopping > 0, saving > 0
            self._answer, self._next = None, self._asked + int(further)
        if self._steps >= self._next and not any_stops:
            self._ask(stops, saves)
        return any_stops, any_saves

    def change_pace(self) -> None:
        """Prepare for steps of another kind: the next exchange follows the first of them. Drops a pending answer; a
        rank that was asked to stop repeats the request."""
        if self._answer is not None:
            self._answer()
            self._answer = None
        self._next = self._steps + 1
        self._asked, self._began = self._steps, time.monotonic()

    def _ask(self, stops: bool, saves: bool) -> None:
        seconds = max(time.monotonic() - self._began, 1e-6)
        fitting = int((self._steps - self._asked) / seconds * _EVERY_SECONDS)
        proposed = min(max(fitting, 1), _MOST_STEPS) if self._group.is_first else 0
        self._answer = self._group.begin_sum([stops, saves, proposed])
        self._asked, self._began = self._steps, time.monotonic()

"""Process groups for tests of what ranks do together: this process alone, or a few that are started for it."""

# pyright: reportPrivateImportUsage=false
# (the annotations of torch are partial)

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets.model.training.checkpoint.parts import State
from ml_assets.model.training.checkpoint.saving import Saver
from ml_assets.model.training.process.group import Group
from ml_assets_tests.faults.child_processes import forkserver


@contextmanager
def one_rank() -> Iterator[Group]:
    """This process as the only rank of a job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            yield _group(0, 1)
        finally:
            distributed.destroy_process_group()


def save(checkpoints: Checkpoints, step: int, state: State, best_step: int = 0) -> None:
    """Save in this process alone, and wait for it; within `one_rank`."""
    saver = Saver(checkpoints, _group(0, 1))
    saver.begin(step, state, best_step, lambda _: None, lambda _: None)
    saver.wait()


def in_ranks(count: int, place: Path, action: Callable[[Group, Path], None]) -> list[Exception | None]:
    """Run `action`, a function of a module, with `place` on `count` ranks, and return each one's error."""
    context = forkserver(__name__)  # not of this process: its threads would be missing
    ranks: list[tuple[Any, Connection]] = []
    for rank in range(count):
        answers, answer = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, count, place, action, answer))
        process.start()
        answer.close()  # so that the end of the process is the end of its answers
        ranks.append((process, answers))
    found = [answers.recv() for _, answers in ranks]
    for process, _ in ranks:
        process.join()
    return found


def _rank(
    rank: int, count: int, place: Path, action: Callable[[Group, Path], None], answer: Connection
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = distributed.FileStore(str(place / "store"), count)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=count)
    ended: Exception | None = None
    try:
        action(_group(rank, count), place)
    except Exception as error:
        ended = error
    distributed.barrier()
    answer.send(ended)
    distributed.destroy_process_group()


def _group(rank: int, count: int) -> Group:
    return Group(rank=rank, world_size=count, local_rank=rank, local_ranks=count, device=torch.device("cpu"))

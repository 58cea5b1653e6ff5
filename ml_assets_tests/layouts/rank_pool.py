"""Processes that train one job after another, any number of them together: starting ranks anew would take seconds."""

# pyright: reportPrivateImportUsage=false

import gc
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.loop import fit
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.run import prepare
from ml_assets.model.training.step.model_digests import digest_of
from ml_assets_tests.faults.child_processes import forkserver
from resources.job.errors import BadConfiguration, Diverged
from resources.job.job import TrainingJob

MOST = 4


class RankStopped(Exception):
    """A rank is to end without a word, as if it were killed."""


class Steps:
    """Stands for heartbeat and stop request: ends the training after some steps of it, or never."""

    requested = False

    def __init__(self, most: int | None) -> None:
        self._left = most
        self.done = 0

    def step(self, step: int) -> None:
        self.done += 1
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise RankStopped

    def begin(self) -> None: ...

    def moved(self) -> None: ...

    def rest(self) -> None: ...


class Ranks:
    """A pool of `MOST` processes."""

    def __init__(self) -> None:
        context = forkserver(__name__)
        self._ranks: list[tuple[Any, Connection]] = []
        for _ in range(MOST):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, mine))

    def train(self, job: TrainingJob, folder: Path, world_size: int, most: int | None = None) -> str:
        """Train `job` with `world_size` ranks, from its newest checkpoint in `folder`, `most` steps or to the end.

        Return the digest of the last weights and of the best validation, `stopped`, `diverged`, or `refused` and the
        number of steps done before.
        """
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as store:
            for rank, (_, pipe) in enumerate(self._ranks[:world_size]):
                pipe.send((job.to_json(), str(folder), f"{store}/store", rank, world_size, most))
            answers = [pipe.recv() for _, pipe in self._ranks[:world_size]]
        assert len(set(answers)) == 1, answers
        return answers[0]

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._ranks:
            pipe.close()
            process.join()


@contextmanager
def ranks() -> Iterator[Ranks]:
    """A pool that ends with the block."""
    pool = Ranks()
    try:
        yield pool
    finally:
        pool.close()


def _serve(pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    gc.freeze()  # so that looking for garbage after each training takes a millisecond
    with suppress(EOFError):
        while True:
            job, folder, store, rank, world_size, most = pipe.recv()
            distributed.init_process_group(
                "gloo", store=distributed.FileStore(store, world_size), rank=rank, world_size=world_size
            )
            group = Group(
                rank=rank,
                world_size=world_size,
                local_rank=rank,
                local_ranks=world_size,
                device=torch.device("cpu"),
            )
            pipe.send(_train(TrainingJob.from_json(job), Path(folder), group, most))
            distributed.barrier()
            distributed.destroy_process_group()
            # The threads of a group end with the last reference to it, and a training refers to itself in circles.
            gc.collect()


def _train(job: TrainingJob, folder: Path, group: Group, most: int | None) -> str:
    steps: Any = Steps(most)
    try:
        run = prepare(job, folder, group)
        run.resume()
        try:
            fit(run, RowLog(folder, 1, group.rank), steps, steps)
        except RankStopped:
            run.wait_until_saved()  # of what a kill leaves, the whole part
            return "stopped"
    except Diverged:
        return "diverged"
    except BadConfiguration:
        return f"refused after {steps.done} steps"
    digest = hashlib.sha256()
    for value in run.model.state_dict().values():
        digest.update(digest_of(value))
    digest.update(f"{run.progress.best_step} {run.progress.best_loss!r}".encode())
    return digest.hexdigest()

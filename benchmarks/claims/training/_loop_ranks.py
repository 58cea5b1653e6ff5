"""Rank of `loop.py`: the same training by the platform's loop and by a bare one, in turn.

Both train the same model on the same rows with the same optimizer, schedule and clipping, on two ranks with one thread
each. The bare loop is careful hand-written code: rows in memory, a permutation per epoch, DDP, nothing else. Rank 0
writes the seconds of each part to `seconds.json`, by the loop that ours was compared with.
"""

import copy
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.loop import fit, learning_rate
from ml_assets.model.training.process.group import Group, join_group
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import Run, prepare
from resources.job.job import TrainingJob


class Block(Run):
    """A run that ends after some steps instead of all."""

    last_step = 0

    @property
    def is_finished(self) -> bool:
        """True after the last step of the block."""
        return self.progress.step >= self.last_step


def model(inputs: InputSpec) -> nn.Module:
    """Return a typical network for tables: numbers in, two hidden layers, one number out."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = len(inputs.numeric)
            self.layers = nn.Sequential(
                nn.Linear(width, 256),
                nn.ReLU(),
                nn.Dropout(0.2),
                nn.Linear(256, 256),
                nn.ReLU(),
                nn.Linear(256, 1),
            )

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            return self.layers(numeric).squeeze(1)

    return Network()


def main(job_file: str, folder: str, steps: str, rounds: str) -> None:
    """Measure parts of `steps` steps: ours beside each other way, `rounds` times there and back."""
    job = TrainingJob.from_json(Path(job_file).read_text())
    bitwise = dataclasses.replace(job, settings=dataclasses.replace(job.settings, determinism="bitwise"))
    with join_group(job.settings) as group, Heartbeat(group.local_rank) as heartbeat:
        ours = platform(job, Path(folder) / "tolerance", group, heartbeat, int(steps))
        others = {
            "bare": bare(job, Path(folder) / "bare", group, int(steps)),
            "bitwise": platform(bitwise, Path(folder) / "bitwise", group, heartbeat, int(steps)),
        }
        for way in (ours, *others.values()):
            way()
        seconds = {name: in_turn(ours, other, int(rounds)) for name, other in others.items()}
        if group.is_first:
            (Path(folder) / "seconds.json").write_text(json.dumps(seconds))


def in_turn(ours: Callable[[], float], other: Callable[[], float], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way's parts, two per round: there and back, so that a steady slowdown of the machine
    disturbs both equally.
    """
    seconds: dict[str, list[float]] = {"ours": [], "other": []}
    for _ in range(rounds):
        for name in ("ours", "other", "other", "ours"):
            seconds[name].append(ours() if name == "ours" else other())
    return seconds


def platform(
    job: TrainingJob, folder: Path, group: Group, heartbeat: Heartbeat, steps: int
) -> Callable[[], float]:
    """Run a block of `steps` steps in the platform's loop, each block in its own folder below `folder`."""
    stop, number = StopRequest(), itertools.count()

    def block() -> float:
        place = folder / str(next(number))
        place.mkdir(parents=True, exist_ok=True)
        rows = RowLog(place, 1, group.rank)
        # A model is trained once: DDP leaves its hooks in it.
        prepared = prepare(job, place, group)
        parts = {field.name: getattr(prepared, field.name) for field in dataclasses.fields(Run) if field.init}
        run = Block(**parts)
        run.resume()
        run.last_step = steps
        seconds = _seconds(group, lambda: fit(run, rows, stop, heartbeat))
        # A training is a process; here many follow each other, and idle connections cost all ways some percent.
        distributed.destroy_process_group(run.io_group.process_group)
        return seconds

    return block


def _seconds(group: Group, work: Callable[[], object]) -> float:
    """Return the seconds from the moment at which all ranks are ready until all have finished."""
    group.gather(0)
    began = time.perf_counter()
    work()
    group.gather(0)
    return time.perf_counter() - began


def bare(job: TrainingJob, folder: Path, group: Group, steps: int) -> Callable[[], float]:
    """Run a block of as many steps in a hand-written loop."""
    folder.mkdir(exist_ok=True)
    run = prepare(job, folder, group)
    settings, order = job.settings, run.order
    mine = [
        run.train.take(order.share(step, group.rank, group.world_size))
        for step in range(order.steps_per_epoch)
    ]
    numeric, category, label = (
        torch.cat([getattr(batch, name) for batch in mine]) for name in ("numeric", "category", "label")
    )
    batch_rows = settings.global_batch // group.world_size

    def epoch(core: nn.Module) -> None:
        replica = DistributedDataParallel(core)
        parameters = list(replica.parameters())
        optimizer = torch.optim.AdamW(
            parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        order = torch.randperm(len(label))
        for step in range(steps):
            chosen = order[step * batch_rows : (step + 1) * batch_rows]
            output = replica(run.model.preprocess(numeric[chosen]), category[chosen])
            optimizer.zero_grad()
            loss = run.objective.loss_sum(output, label[chosen]) / batch_rows
            loss.backward()
            clip_grad_norm_(parameters, settings.clip_norm)
            rate = learning_rate(step, steps, settings.learning_rate, settings.warmup_fraction)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            if step % settings.log_every_steps == 0:
                loss.item()

    def block() -> float:
        core = copy.deepcopy(run.model.core)  # a training begins anew, as ours does
        return _seconds(group, lambda: epoch(core))

    return block


if __name__ == "__main__":
    main(*sys.argv[1:])

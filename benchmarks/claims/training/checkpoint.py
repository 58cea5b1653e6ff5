"""Stall of training for a checkpoint, cost of each storage format, and time from SIGTERM to a saved and ended job.

The first part copies and saves 300 MB of weights and optimizer state, by one rank and by two. It alternates with the
least work of any way (a copy in memory) and with `torch.save` and fsync, median of the rounds; memory is allocated
before the first, as in a training. The second part saves and loads the state of a model that has learned a little as
`fp32`, `compressed` and `bf16`. The third part trains a model with 1 GB of state on two ranks and sends SIGTERM to the
job, as a node that is drained does. Its yardstick is the least that such an end needs: the step in progress, a plain
`torch.save` with fsync of as many bytes, and the end of the same job with hardly any state.
"""

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from benchmarks._report import Result, emit, parse_args, ratio_of
from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets.model.training.checkpoint.saving import Saver, state_of
from ml_assets.model.training.process.group import Group
from ml_assets_tests.training.rank_processes import in_ranks
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.events import TrainingEvent
from resources.job.job import ExitCode, TrainingJob
from resources.job.training_settings import CheckpointStorage

MEGABYTES = 300
WAYS = ("ours", "ours, until it counts", "memcpy", "torch.save + fsync")
MOST_TIMES_LEAST = 2.0
"""Most time from SIGTERM to the end. Two ranks also agree on the step to save, copy the state and write its digest."""
ADAM = 3
"""Keep tensors of a parameter's size, as AdamW must: the parameter and two moments."""


class Wide(nn.Module):
    """A model with the requested number of parameters, nearly all in one embedding, and almost no computation."""

    def __init__(self, inputs: InputSpec, numbers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(numbers // 64, 64)
        self.head = nn.Linear(len(inputs.numeric) + 64, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([numeric, self.table(category[:, 0])], dim=1)).squeeze(1)


def wide(inputs: InputSpec, *, numbers: int) -> Wide:
    """Return the model of the second part."""
    return Wide(inputs, numbers)


def main() -> int:
    """Measure all three parts."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        blocked = _blocked(Path(folder), rounds=3 if arguments.quick else 9)
        stored = _stored(Path(folder) / "stored", rounds=2 if arguments.quick else 5)
        stopped = _stopped(Path(folder), *((100, 1) if arguments.quick else (1000, 3)))
    return emit([*blocked, *stored, stopped], json=arguments.json)


def _blocked(folder: Path, rounds: int) -> list[Result]:
    os.environ["OMP_NUM_THREADS"] = "1"  # as in the ranks of a job
    alone, both = (_of_slowest(folder / str(ranks), ranks, rounds) for ranks in (1, 2))
    return [
        Result(
            name=f"stall of the loop of one rank for a checkpoint of {MEGABYTES} MB",
            value=alone["ours"],
            unit="ms",
            peers=_besides(alone, "ours"),
            ratio=alone["ours"] / alone["memcpy"],
            bar="≤ 2 × memcpy",
            ok=alone["ours"] <= 2 * alone["memcpy"],
        ),
        Result(
            name=f"stall of the loop of two ranks, as by default, for a checkpoint of {MEGABYTES} MB",
            value=both["ours"],
            unit="ms",
            peers={**_besides(both, "ours"), "ours, one rank": alone["ours"]},
            ratio=both["ours"] / both["torch.save + fsync"],
            bar="≤ 1/12 × torch.save + fsync",
            ok=12 * both["ours"] <= both["torch.save + fsync"],
        ),
        Result(
            name="the first checkpoint of a training against later ones, one rank",
            value=alone["ours, first time"],
            unit="ms",
            peers={"later": alone["ours"]},
            ratio=alone["ours, first time"] / alone["ours"],
            bar="≤ 2 × later ones",
            ok=alone["ours, first time"] <= 2 * alone["ours"],
        ),
    ]


def _of_slowest(folder: Path, ranks: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each way on the slowest rank, and those of the first round separately."""
    folder.mkdir()
    (folder / "rounds").write_text(str(rounds))
    ended = in_ranks(ranks, folder, measure)
    assert ended == [None] * ranks, ended
    measured = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    slowest = {
        way: [max(taken) for taken in zip(*(one[way] for one in measured), strict=True)] for way in WAYS
    }
    return {way: 1000 * statistics.median(taken[1:]) for way, taken in slowest.items()} | {
        "ours, first time": 1000 * slowest["ours"][0]
    }


def _besides(figures: dict[str, float], name: str) -> dict[str, float]:
    return {key: value for key, value in figures.items() if key != name}


def measure(group: Group, folder: Path) -> None:
    """Time the ways in turn, on each rank. The ways that are not ours run on rank 0 while the other ranks wait."""
    model, optimizer = _model(steps=1)
    state = state_of(model, optimizer, {"step": 1})
    tensors = [value for section in state.values() for value in section.values() if torch.is_tensor(value)]
    copies = [value.clone() for value in tensors]
    saver = Saver(Checkpoints(folder, 2, "f"), group.io_group())
    saver.make_memory(lambda: state)
    saver.wait()

    def copy() -> None:
        for value, there in zip(tensors, copies, strict=True):
            there.copy_(value)

    def save() -> None:
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for step in range(
        1, int((folder / "rounds").read_text()) + 2
    ):  # the first checkpoint is its own measurement
        new = folder / f"{step}.pt"  # a new file: the previous file may be the only complete one
        for way, action in (("memcpy", copy), ("torch.save + fsync", save)):
            group.gather(0)
            start = time.perf_counter()
            if group.is_first:
                action()
            seconds[way].append(time.perf_counter() - start)
        new.unlink(missing_ok=True)
        group.gather(0)
        start = time.perf_counter()
        saver.begin(step, state_of(model, optimizer, {"step": step}), 0, lambda _: None, lambda _: None)
        seconds["ours"].append(time.perf_counter() - start)
        saver.wait()
        seconds["ours, until it counts"].append(time.perf_counter() - start)
    (folder / f"{group.rank}.json").write_text(json.dumps(seconds))


def _model(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model with `MEGABYTES` of state that has learned for some steps to return its input."""
    width = 1024
    layers = MEGABYTES * 10**6 // (4 * ADAM * width * (width + 1))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        rows = torch.randn(32, width)
        (model(rows) - rows).square().mean().backward()
        optimizer.step()
    return model, optimizer


def _stored(folder: Path, rounds: int) -> list[Result]:
    """Return the cost of each storage format: the median of the rounds, taken in turn."""
    folder.mkdir()
    (folder / "rounds").write_text(str(rounds))
    assert in_ranks(1, folder, store) == [None]
    costs: dict[str, dict[str, float]] = json.loads((folder / "costs.json").read_text())
    ways = get_args(CheckpointStorage)

    def result(what: str, unit: str, bar: str, holds: Callable[[float, float, float], bool]) -> Result:
        plain, rounded, compressed = (costs[way][what] for way in ways)
        return Result(
            name=f"{what}, a checkpoint of {MEGABYTES} MB stored as fp32",
            value=plain,
            unit=unit,
            peers={"bf16": rounded, "compressed": compressed},
            bar=bar,
            ok=holds(plain, rounded, compressed),
        )

    return [
        result(
            "bytes",
            "MB",
            "bf16 ≤ 0.51 ×, compressed ≤ 0.95 ×",
            lambda plain, rounded, compressed: rounded <= 0.51 * plain and compressed <= 0.95 * plain,
        ),
        result(
            "largest relative error",
            "",
            "bf16 ≤ 2^-8, others none",
            lambda plain, rounded, compressed: rounded <= 2**-8 and plain == compressed == 0,
        ),
        result(
            "loop stands still",
            "ms",
            "others ≤ 2 ×",
            lambda plain, rounded, compressed: max(rounded, compressed) <= 2 * plain,
        ),
        result("until it counts", "ms", "none: a cost", lambda *_: True),
        result("loading", "ms", "none: a cost", lambda *_: True),
    ]


def store(group: Group, folder: Path) -> None:
    """Save and load in each format, in turn, on the only rank."""
    model, optimizer = _model(steps=20)
    state = state_of(model, optimizer, {"step": 20})
    savers = {
        way: (
            Checkpoints(folder / way, 2, "f"),
            Saver(Checkpoints(folder / way, 2, "f"), group.io_group(), storage=way),
        )
        for way in get_args(CheckpointStorage)
    }
    rounds = int((folder / "rounds").read_text())
    times: dict[str, list[tuple[float, float, float]]] = {way: [] for way in savers}
    costs: dict[str, dict[str, float]] = {}
    for step in range(1, rounds + 2):
        for way, (checkpoints, saver) in savers.items():
            start = time.perf_counter()
            saver.begin(step, state, 0, lambda _: None, lambda _: None)
            blocked = time.perf_counter() - start
            saver.wait()
            counts = time.perf_counter() - start
            start = time.perf_counter()
            loaded = checkpoints.load(step)
            times[way].append((blocked, counts, time.perf_counter() - start))
            if step == 1:
                parts = folder / way / "checkpoints"
                errors = [
                    ((back.float() - value).abs() / value.abs().clamp_min(1e-30)).max().item()
                    for section in ("parameters", "optimizer")
                    for name, value in state[section].items()
                    for back in [loaded[section][name]]
                ]
                size = sum(path.stat().st_size for path in parts.rglob("*") if path.is_file())
                costs[way] = {"bytes": size / 1e6, "largest relative error": max(errors)}
    for way, taken in times.items():
        names = ("loop stands still", "until it counts", "loading")
        medians = (1000 * statistics.median(one) for one in zip(*taken[1:], strict=True))
        costs[way] |= dict(zip(names, medians, strict=True))
    (folder / "costs.json").write_text(json.dumps(costs))


@dataclass(frozen=True, kw_only=True)
class _Stop:
    """A job that got SIGTERM."""

    seconds: float
    """Seconds from SIGTERM until all ranks have ended."""
    saved: float
    """Seconds until the checkpoint counts, which are part of these."""
    step: float
    """Median seconds of a step."""
    megabytes: float
    """Size of its checkpoints."""
    as_promised: bool
    """True if it ended as preempted, and its checkpoint is no older than the step at SIGTERM."""


def _stopped(folder: Path, megabytes: int, rounds: int) -> Result:
    stops: list[_Stop] = []
    least: list[float] = []
    written = torch.rand(megabytes * 10**6 // 4)
    for number in range(rounds):
        stops.append(_stop(folder / f"job-{number}", megabytes))
        empty = _stop(folder / f"empty-{number}", 1)
        start = time.perf_counter()
        with (folder / "plain.pt").open("wb") as file:
            torch.save(written, file)
            file.flush()
            os.fsync(file.fileno())
        least.append(stops[-1].step + time.perf_counter() - start + empty.seconds)
    times = ratio_of([one.seconds for one in stops], least)
    return Result(
        name=f"from SIGTERM until {stops[-1].megabytes:.0f} MB of state are saved and all ranks are out "
        f"({times.spread})",
        value=statistics.median(one.seconds for one in stops),
        unit="s",
        peers={
            "saved, of that": statistics.median(one.saved for one in stops),
            "a step, torch.save + fsync, end without state": statistics.median(least),
        },
        ratio=times.median,
        bar=f"≤ {MOST_TIMES_LEAST:g} × a step, torch.save + fsync and an end without state; exit code 75, nothing lost",
        ok=times.median <= MOST_TIMES_LEAST and all(one.as_promised for one in stops),
    )


def _stop(folder: Path, megabytes: int) -> _Stop:
    """Train a model with so much state on two ranks, and send SIGTERM to the job once it has trained three steps."""
    snapshot = small_snapshot(folder / "snapshots")
    numbers = megabytes * 10**6 // (4 * ADAM)
    job = small_job(snapshot, epochs=1000, checkpoint_every_steps=10**6)
    facts = json.loads(job.to_json()) | {
        "model_function": "benchmarks.claims.training.checkpoint.wide",
        "hyperparameters": {"numbers": numbers},
    }
    job = TrainingJob.from_json(json.dumps(facts))
    (folder / "job.json").write_text(job.to_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "ml_assets.model.training.node.torchrun", folder / "job.json", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert process.stdout is not None
    asked = saved = 0.0
    moments: list[float] = []
    step = 0
    for line in process.stdout:
        event = TrainingEvent.from_line(line.strip())
        if event is not None and event.kind == "metrics" and not asked:
            moments.append(time.monotonic())
            if event.step >= 3:
                asked, step = time.monotonic(), event.step
                process.send_signal(signal.SIGTERM)
        elif event is not None and event.kind == "checkpoint":
            saved = time.monotonic()
    code, out = process.wait(), time.monotonic()
    good = Checkpoints(folder, 2, job.fingerprint).newest_good()
    return _Stop(
        seconds=out - asked,
        saved=saved - asked,
        step=statistics.median(after - before for before, after in itertools.pairwise(moments)),
        megabytes=sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*")) / 1e6,
        as_promised=code == ExitCode.PREEMPTED and good is not None and good >= step,
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""How long training stands still for a checkpoint, and how fast a job that is asked to stop has saved and is out.

The first part copies and saves 300 MB of weights and optimizer state in this process, in turn with what any way has to
do at least (a copy in memory) and with `torch.save` and fsync, each in its quietest round. The second trains a model
with 1 GB of state on two ranks and sends SIGTERM to the job as a node that is taken away does.
"""

# pyright: reportPrivateImportUsage=false
# (the annotations of torch are partial)

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from _report import Result, emit, parse_args
from torch import distributed, nn

from ml_assets.snapshots.reader import InputSpec
from ml_assets.training.checkpoints import Checkpoints
from ml_assets.training.group import Group
from ml_assets.training.saving import Saver
from ml_assets.training.state import state_of
from ml_assets_tests.training.jobs import small_job, small_snapshot
from resources.launcher.job import ExitCode, TrainingJob
from resources.launcher.protocol import TrainingEvent

ADAM = 3
"""Tensors of a parameter's size that AdamW has to keep: itself and two moments."""


class Wide(nn.Module):
    """As many numbers as asked for, nearly all of them in one embedding, and next to nothing to compute."""

    def __init__(self, inputs: InputSpec, numbers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(numbers // 64, 64)
        self.head = nn.Linear(len(inputs.numeric) + 64, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([numeric, self.table(category[:, 0])], dim=1)).squeeze(1)


def wide(inputs: InputSpec, *, numbers: int) -> Wide:
    """The model function of the second part."""
    return Wide(inputs, numbers)


def main() -> int:
    """Measure both."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        blocked = _blocked(Path(folder), megabytes=300, rounds=3 if arguments.quick else 9)
        stopped = _stopped(Path(folder) / "job", megabytes=100 if arguments.quick else 1000)
    return emit([*blocked, stopped], json=arguments.json)


def _blocked(folder: Path, megabytes: int, rounds: int) -> list[Result]:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(megabytes * 10**6 // (4 * ADAM * 512 * 513))))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(4, 512)).sum().backward()
    optimizer.step()
    state = state_of(model, optimizer, {"step": 1})
    tensors = [value for section in state.values() for value in section.values() if torch.is_tensor(value)]
    copies = [value.clone() for value in tensors]
    seconds: dict[str, list[float]] = {
        "memcpy": [],
        "ours": [],
        "torch.save + fsync": [],
        "until ours counts": [],
    }
    with _alone() as group:
        saver = Saver(Checkpoints(folder, keep=2), group)
        for step in range(1, rounds + 2):  # the first makes the memory that is kept
            start = time.perf_counter()
            for value, copy in zip(tensors, copies, strict=True):
                copy.copy_(value)
            seconds["memcpy"].append(time.perf_counter() - start)
            start = time.perf_counter()
            saver.begin(step, state_of(model, optimizer, {"step": step}), 0, lambda _: None, lambda _: None)
            seconds["ours"].append(time.perf_counter() - start)
            saver.wait()
            seconds["until ours counts"].append(time.perf_counter() - start)
            start = time.perf_counter()
            with (folder / "state.pt").open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            seconds["torch.save + fsync"].append(time.perf_counter() - start)
    first = seconds["ours"][0]
    best = {name: 1000 * min(taken[1:]) for name, taken in seconds.items()}
    ours, size = best.pop("ours"), sum(value.nbytes for value in tensors) / 1e6
    peers = {**best, "ours, first time": 1000 * first}
    return [
        Result(
            name=f"loop stands still for a checkpoint of {size:.0f} MB, against {peer}",
            value=ours,
            unit="ms",
            peers=peers,
            ratio=ours / best[peer],
            bar=f"≤ {'2' if bound > 1 else '1/12'} × {peer}",
            ok=ours <= bound * best[peer],
        )
        for peer, bound in (("memcpy", 2.0), ("torch.save + fsync", 1 / 12))
    ]


@contextmanager
def _alone() -> Iterator[Group]:
    torch.set_num_threads(1)  # as in a rank
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield Group(rank=0, world_size=1, local_rank=0, local_ranks=1, device=torch.device("cpu"))
    distributed.destroy_process_group()


def _stopped(folder: Path, megabytes: int) -> Result:
    snapshot = small_snapshot(folder / "snapshots")
    numbers = megabytes * 10**6 // (4 * ADAM)
    job = small_job(snapshot, epochs=1000, checkpoint_steps=10**6)
    facts = json.loads(job.to_json()) | {
        "model_function": f"{Path(__file__).stem}.wide",
        "hyperparameters": {"numbers": numbers},
    }
    (folder / "job.json").write_text(TrainingJob.from_json(json.dumps(facts)).to_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "ml_assets.training.torchrun", folder / "job.json", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert process.stdout is not None
    asked = saved = 0.0
    step = 0
    for line in process.stdout:
        event = TrainingEvent.from_line(line.strip())
        if event is not None and event.kind == "metrics" and event.step >= 3 and not asked:
            asked, step = time.monotonic(), event.step
            process.send_signal(signal.SIGTERM)
        elif event is not None and event.kind == "checkpoint":
            saved = time.monotonic()
    code, out = process.wait(), time.monotonic()
    good = Checkpoints(folder, keep=2).newest_good()
    size = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*")) / 1e6
    return Result(
        name=f"from SIGTERM until {size:.0f} MB of state are saved and all ranks are out",
        value=out - asked,
        unit="s",
        peers={"saved, of that": saved - asked},
        bar="≤ 30 s, exit code 75, nothing lost",
        ok=out - asked <= 30 and code == ExitCode.PREEMPTED and good is not None and good >= step,
    )


if __name__ == "__main__":
    raise SystemExit(main())

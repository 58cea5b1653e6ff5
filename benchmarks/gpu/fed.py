"""Steps per second fed from a snapshot against one batch repeated, in one process (T10); and every collective once.

    python -m torch.distributed.run --nproc-per-node=1 -m benchmarks.gpu.fed JOB.json FOLDER STEPS

Blocks of steps alternate there and back (fed, repeated, repeated, fed), so that a drift of clocks cancels. A step is
that of the loop: forward, backward, clip with its wait for the device, optimizer. Prints one line of JSON.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ml_assets.model.training.data.batches import Batch
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.gradients import Gradients, gradients_of
from ml_assets.model.training.process.group import Group, join_group
from ml_assets.model.training.run import Run, prepare
from resources.job.job import TrainingJob

_BLOCKS = 8
_UNTIMED_STEPS = 10


def main(job_file: str, folder: str, steps: str) -> None:
    """Measure and print."""
    job = TrainingJob.from_json(Path(job_file).read_text())
    with join_group(job.settings) as group:
        _use_every_collective(group)
        run = prepare(job, Path(folder), group)
        with Prefetcher(run.order, run.train, group.rank, group.world_size, 0) as prefetcher:
            ratios, fed = _compare(run, gradients_of(run, prefetcher), int(steps))
    found = {
        "device": group.device.type,
        "backend": torch.distributed.get_default_backend_for_device(group.device),
        "fed_to_repeated": statistics.median(ratios),
        "fed_to_repeated_lowest": min(ratios),
        "steps_per_second": statistics.median(fed),
    }
    if group.device.type == "cuda":
        from torch.cuda import nccl

        found["nccl"] = ".".join(map(str, nccl.version()))
    print(json.dumps(found))


def _use_every_collective(group: Group) -> None:
    """Raise if an operation of the group returns a wrong value. On one rank, each must return the rank's own values."""
    values = torch.arange(8.0, device=group.device)
    group.copy_from_first([values])
    checks = {
        "sum": group.sum([1.5, 2.0]) == [1.5 * group.world_size, 2.0 * group.world_size],
        "begin_sum": group.begin_sum([3.0])() == [3.0 * group.world_size],
        "gather": group.gather(group.rank) == list(range(group.world_size)),
        "gather_objects": group.gather_objects({"rank": group.rank})[group.rank] == {"rank": group.rank},
        "copy_from_first": values.tolist() == [float(i) for i in range(8)],
        "from_first": group.from_first(7) == 7,
        "over gloo": group.io_group().all_succeed(lambda: 1) == 1,
    }
    if wrong := [name for name, ok in checks.items() if not ok]:
        raise RuntimeError(f"collectives gave wrong values: {', '.join(wrong)}")


def _compare(run: Run, gradients: Gradients, steps: int) -> tuple[list[float], list[float]]:
    """Return the ratio of fed to repeated steps per second of each pair of blocks, and the fed steps per second."""
    at = 0

    def fetch() -> Sequence[Batch]:
        nonlocal at
        at += 1
        return gradients.fetch(at - 1)

    same = fetch()
    for _ in range(_UNTIMED_STEPS):
        _step(run, gradients, fetch())
    ratios: list[float] = []
    speeds: list[float] = []
    for number in range(_BLOCKS):
        speed: dict[bool, float] = {}
        for is_fed in (True, False) if number % 2 else (False, True):
            began = time.perf_counter()
            for _ in range(steps):
                _step(run, gradients, fetch() if is_fed else same)
            speed[is_fed] = steps / (time.perf_counter() - began)
        ratios.append(speed[True] / speed[False])
        speeds.append(speed[True])
    # A pair there and a pair back together.
    return [statistics.mean(pair) for pair in zip(ratios[::2], ratios[1::2], strict=True)], speeds


def _step(run: Run, gradients: Gradients, batches: Sequence[Batch]) -> None:
    gradients.backward(0, batches)
    run.layout.clip(run.job.settings.clip_norm)
    run.optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])

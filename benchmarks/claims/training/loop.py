"""Our training loop beside a bare hand-written one, and the cost of the same bits for any number of workers.

Two ranks, the ways in turn, there and back. A part has no validation and no checkpoint, but all else: rows read ahead
and logged, the agreement on loss and signals, the stop at a value that is not finite, metrics every 20 steps.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.training.loader import write_snapshot
from ml_assets.foundation.checkout import ROOT
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings

WORKERS, BATCH, LANES = 2, 4096, 8
LEAST_MEDIAN, LEAST_BOUND = 0.97, 0.95
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
"""Environment of the ranks."""


@dataclass(frozen=True)
class Compared:
    """Two ways measured in turn, there and back: two parts of `steps` steps each make a block."""

    steps: int
    ours: Sequence[float]
    """Seconds of each part."""
    other: Sequence[float]

    @property
    def our_rate(self) -> float:
        """Return our steps per second."""
        return self.steps / statistics.median(self.ours)

    @property
    def other_rate(self) -> float:
        """Return the other way's steps per second."""
        return self.steps / statistics.median(self.other)

    @property
    def ratios(self) -> list[float]:
        """Return our steps per second over the other way's, by block."""
        parts = range(0, len(self.ours), 2)
        return [sum(self.other[part : part + 2]) / sum(self.ours[part : part + 2]) for part in parts]

    @property
    def ratio(self) -> float:
        """Return the ratio of a typical block."""
        return statistics.median(self.ratios)

    @property
    def bound(self) -> float:
        """Return the lower bound of that median: the value that 95 % of resampled medians reach (bootstrap)."""
        chance, ratios = random.Random(0), self.ratios
        medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(4000))
        return medians[len(medians) // 20]


def main() -> int:
    """Measure and decide."""
    arguments = parse_args(__doc__)
    steps, rounds = (60, 6) if arguments.quick else (200, 10)
    with tempfile.TemporaryDirectory() as folder:
        seconds = _measure(Path(folder), steps, rounds)
    bare, bitwise = (Compared(steps, **seconds[name]) for name in ("bare", "bitwise"))
    results = [
        Result(
            name=f"loop against a bare one, {rounds} blocks there and back (95 % bound {bare.bound:.3f})",
            value=bare.our_rate,
            unit="steps per second",
            peers={"bare": bare.other_rate},
            ratio=bare.ratio,
            bar=f"≥ {LEAST_MEDIAN} × bare, 95 % bound ≥ {LEAST_BOUND}",
            ok=bare.ratio >= LEAST_MEDIAN and bare.bound >= LEAST_BOUND,
        ),
        Result(
            name=f"determinism bitwise, {LANES} lanes on {WORKERS} workers",
            value=bitwise.other_rate,
            unit="steps per second",
            peers={"tolerance": bitwise.our_rate},
            ratio=1 / bitwise.ratio,
            bar="none: a cost",
            ok=True,
        ),
    ]
    return emit(results, json=arguments.json)


def _measure(folder: Path, steps: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    write_job(folder, steps)
    subprocess.run(
        [
            *ranks("benchmarks.claims.training._loop_ranks"),
            str(folder / "job.json"),
            str(folder),
            str(steps),
            str(rounds),
        ],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        stdout=sys.stderr,
        check=True,
    )
    return json.loads((folder / "seconds.json").read_text())


def write_job(folder: Path, steps: int) -> None:
    """Write `job.json` to `folder`: blocks of `steps` steps without a checkpoint, and the rows for them."""
    snapshot = write_snapshot(folder / "snapshots", steps * BATCH + BATCH)
    job = TrainingJob(
        model="loop",
        partition="2024-01-01",
        model_function="benchmarks.claims.training._loop_ranks.model",
        objective="binary",
        hyperparameters={},
        snapshot=str(snapshot.folder),
        snapshot_digest=snapshot.digest,
        code_version="",
        seed=1,
        settings=TrainingSettings(
            workers=WORKERS,
            device="cpu",
            global_batch=BATCH,
            lanes=LANES,
            checkpoint_every_steps=10**9,
            checkpoint_every_minutes=10**6,
        ),
    )
    (folder / "job.json").write_text(job.to_json())


def ranks(module: str) -> list[str]:
    """Return the command that runs `module` in each rank."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORKERS}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", "-m", module),
    ]


if __name__ == "__main__":
    raise SystemExit(main())

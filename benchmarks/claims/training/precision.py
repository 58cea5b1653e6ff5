"""Cost and gain on this machine of `precision`, `gradient_accumulation_steps`, `activation_checkpointing`,
`gradient_compression` and `compile`, each against none.

A network of twelve residual layers. Each way trains in its own processes, in turn, and reports steps per second and the
loss of its last steps. Another process measures the growth of its memory beyond that of the model itself.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.training.loader import write_snapshot
from ml_assets.foundation.checkout import ROOT
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings

BATCH = 4096
ALONE: dict[str, dict[str, Any]] = {
    "none": {},
    "precision bf16": {"precision": "bf16"},
    "gradient_accumulation_steps 4": {"gradient_accumulation_steps": 4},
    "activation_checkpointing selective": {"activation_checkpointing": "selective"},
    "activation_checkpointing full": {"activation_checkpointing": "full"},
    "compile": {"compile": True},
}
TOGETHER: dict[str, dict[str, Any]] = {
    "none": {},
    "gradient_compression bf16": {"gradient_compression": "bf16"},
    "gradient_compression powersgd": {"gradient_compression": "powersgd"},
}
LARGEST_DIFFERENCE = {"gradient_compression powersgd, 2 workers": 0.10}
"""Largest relative difference of the loss after so few steps; 0.01 unless given."""
EXACT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Settings under which freed memory returns to the system at once, so that the peak is the memory needed; slower."""
Told = dict[str, float]
"""`steps_per_second`, `megabytes`, `loss`."""


def main() -> int:
    """Measure and decide."""
    arguments = parse_args(__doc__)
    steps, rounds = (8, 1) if arguments.quick else (20, 3)
    with tempfile.TemporaryDirectory() as folder:
        snapshot = write_snapshot(Path(folder) / "snapshots", (steps + 5) * BATCH).folder
        alone = _measure(snapshot, ALONE, 1, steps, rounds)
        together = _measure(snapshot, TOGETHER, 2, steps, rounds)
        memory = {name: _train(snapshot, way, 1, 2, EXACT_MEMORY) for name, way in ALONE.items()}
    results = [_speed(name, told, alone["none"]) for name, told in alone.items() if name != "none"]
    results += [
        _memory("gradient_accumulation_steps 4", memory, 0.5),
        _memory("activation_checkpointing full", memory, 0.5),
        _memory("activation_checkpointing selective", memory, 0.8),
        _memory("precision bf16", memory, 0.8),
    ]
    results += [
        _speed(f"{name}, 2 workers", told, together["none"])
        for name, told in together.items()
        if name != "none"
    ]
    return emit(results, json=arguments.json)


def _speed(name: str, told: Told, none: Told) -> Result:
    """Return the cost or gain of one way; its loss must be near that of plain training."""
    most = LARGEST_DIFFERENCE.get(name, 0.01)
    differs = abs(told["loss"] / none["loss"] - 1)
    return Result(
        name=f"{name}: last losses {told['loss']:.4f} against {none['loss']:.4f}",
        value=told["steps_per_second"],
        unit="steps per second",
        peers={"none": none["steps_per_second"]},
        ratio=told["steps_per_second"] / none["steps_per_second"],
        bar=f"loss within {most:.0%} of none; its speed has no bar",
        ok=differs <= most,
    )


def _memory(name: str, told: dict[str, Told], most: float) -> Result:
    ours, none = told[name]["megabytes"], told["none"]["megabytes"]
    return Result(
        name=f"{name}: memory beyond the model's",
        value=ours,
        unit="MB",
        peers={"none": none},
        ratio=ours / none,
        bar=f"≤ {most} × none",
        ok=ours <= most * none,
    )


def _measure(
    snapshot: Path, ways: dict[str, dict[str, Any]], workers: int, steps: int, rounds: int
) -> dict[str, Told]:
    """Return the medians over the rounds."""
    told: dict[str, list[Told]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            told[name].append(_train(snapshot, ways[name], workers, steps))
    return {
        name: {what: statistics.median(one[what] for one in of_way) for what in of_way[0]}
        for name, of_way in told.items()
    }


def _train(
    snapshot: Path, changes: dict[str, Any], workers: int, steps: int, env: dict[str, str] | None = None
) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        job = TrainingJob(
            model="precision",
            partition="2024-01-01",
            model_function="benchmarks.claims.training._precision_ranks.model",
            objective="binary",
            hyperparameters={},
            snapshot=str(snapshot),
            snapshot_digest=json.loads((snapshot / "snapshot.json").read_text())["digest"],
            code_version="",
            seed=1,
            settings=TrainingSettings(workers=workers, global_batch=BATCH, **changes),
        )
        (Path(folder) / "job.json").write_text(job.to_json())
        subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                f"--nproc-per-node={workers}",
                "--rdzv-backend=c10d",
                "--rdzv-endpoint=127.0.0.1:0",
                "--local-addr=127.0.0.1",
                "-m",
                "benchmarks.claims.training._precision_ranks",
                str(folder),
                str(steps),
            ],
            cwd=ROOT,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
            | (env or {}),
            stdout=sys.stderr,
            check=True,
        )
        return json.loads((Path(folder) / "told.json").read_text())


if __name__ == "__main__":
    raise SystemExit(main())

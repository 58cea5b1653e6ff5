"""Our training loop with tracking and checkpoints, beside a bare hand-written one without them.

Two ranks, blocks of both ways in turn, there and back. Ours sends 50 metrics per second or more to a process that
stores them in MLflow (SQLite, on the same cores), as the step of a run does. It saves one checkpoint per block and
waits for its end; a block of 400 steps takes about 10 s on two cores. Afterwards every metric must be stored exactly
once.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.training.loop import ENVIRONMENT, ROOT, Compared, ranks, write_job
from resources.job.events import TrainingEvent
from resources.tracking.mlflow_client import open_client
from resources.tracking.tracker import RunFacts, TrackedRun, Tracker

LEAST, PER_SECOND = 0.95, 50
_TRACKED = ("metrics", "checkpoint")


def main() -> int:
    """Measure and decide."""
    arguments = parse_args(__doc__)
    steps, rounds = (150, 6) if arguments.quick else (400, 10)
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), steps)
        tracker = Tracker(f"sqlite:///{folder}/mlflow.db", Path(folder))
        with tracker.start(RunFacts(experiment="loop", fingerprint="f", name="loop", author="a")) as run:
            told = _measure(Path(folder), steps, rounds, run)
        stored = _stored(tracker, run.run_id)
        beside = Compared(steps, **json.loads((Path(folder) / "seconds.json").read_text()))
    # One part of ours was not measured, but sent its metrics as well.
    per_second = stored.total() / (len(beside.ours) + 1) / statistics.median(beside.ours)
    longest = max(beside.ours)
    result = Result(
        name=(
            f"loop with {per_second:.0f} metrics/s tracked and a checkpoint every {longest:.0f} s or less, {rounds} "
            f"blocks there and back (95 % bound {beside.bound:.3f}), {stored.total()} points stored of {told.total()}"
        ),
        value=beside.our_rate,
        unit="steps per second",
        peers={"bare": beside.other_rate},
        ratio=beside.ratio,
        bar=f"≥ {LEAST} × bare, each point stored once",
        ok=beside.ratio >= LEAST and stored == told and stored.total() > 0,
    )
    return emit(result, json=arguments.json)


def _measure(folder: Path, steps: int, rounds: int, run: TrackedRun) -> Counter[tuple[str, int]]:
    """Run the ranks and track their metrics; return how often each metric was sent at each step."""
    command = ranks("benchmarks.claims.training._tracked_ranks")
    arguments = (str(folder / "job.json"), str(folder), str(steps), str(rounds), str(PER_SECOND))
    told: Counter[tuple[str, int]] = Counter()
    block, last = itertools.count(), 0
    offset = steps * next(block)
    with subprocess.Popen(
        [*command, *arguments], cwd=ROOT, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = TrainingEvent.from_line(line)
            if event is None:
                sys.stderr.write(line)
                continue
            if event.kind not in _TRACKED:
                continue
            if event.step < last and event.kind == "metrics":  # each block begins at its first step
                offset = steps * next(block)
            last = event.step if event.kind == "metrics" else last
            numbers = {name: float(v) for name, v in event.values.items() if isinstance(v, int | float)}
            run.log(numbers, offset + event.step, event.time)
            told.update((name, offset + event.step) for name in numbers)
    if process.returncode:
        raise SystemExit(f"the ranks ended with {process.returncode}")
    return told


def _stored(tracker: Tracker, run_id: str) -> Counter[tuple[str, int]]:
    client = open_client(tracker.uri)
    names = client.get_run(run_id).data.metrics
    return Counter((name, point.step) for name in names for point in client.get_metric_history(run_id, name))


if __name__ == "__main__":
    raise SystemExit(main())

"""Cost of a metric for the training step, and metrics stored per second: our sink beside MLflow's own ways.

A step logs five metrics. Sync is `log_metrics`, async is MLflow's asynchronous logging; all three write to their own
SQLite database. Means are of the quietest of five rounds, for all three: one pause of a busy machine would outweigh ten
thousand calls.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from resources.tracking.mlflow_client import open_client
from resources.tracking.tracker import RunFacts, Tracker

METRICS = 5
ROUNDS = 5
PACE = 0.0005
"""Seconds between two steps while a call is timed, so that deliveries happen meanwhile."""


def main() -> int:
    """Measure both claims."""
    arguments = parse_args(__doc__)
    steps, peer_steps = (2_000, 100) if arguments.quick else (10_000, 400)
    with tempfile.TemporaryDirectory() as folder:
        call, rate = _ours(Path(folder) / "ours", steps)
        peers = {
            "mlflow sync": _mlflow(Path(folder) / "sync", peer_steps, synchronous=True),
            "mlflow async": _mlflow(Path(folder) / "async", peer_steps, synchronous=False),
        }
    fastest = min(seconds for seconds, _ in peers.values())
    most = max(stored for _, stored in peers.values())
    results = [
        Result(
            name="mean cost of logging a metric in the training step",
            value=call * 1e6 / METRICS,
            unit="µs per metric",
            peers={name: seconds * 1e6 / METRICS for name, (seconds, _) in peers.items()},
            ratio=call / fastest,
            bar="≤ 1/100 × the faster of MLflow's",
            ok=100 * call <= fastest,
        ),
        Result(
            name="metrics stored",
            value=rate,
            unit="per second",
            peers={name: stored for name, (_, stored) in peers.items()},
            ratio=rate / most,
            bar="≥ 4 × the faster of MLflow's",
            ok=rate >= 4 * most,
        ),
    ]
    return emit(results, json=arguments.json)


def _ours(folder: Path, steps: int) -> tuple[float, float]:
    """Return the mean seconds of a call at a training loop's pace, and the metrics stored per second at full speed."""
    tracker = Tracker(f"sqlite:///{folder / 'mlflow.db'}", folder)
    folder.mkdir()
    with tracker.start(RunFacts(experiment="bench", fingerprint="paced", name="a", author="a")) as run:
        call = _timed(run.log, steps, PACE)
    rates: list[float] = []
    for turn in range(ROUNDS):
        facts = RunFacts(experiment="bench", fingerprint=f"full speed {turn}", name="b", author="a")
        with tracker.start(facts) as run:
            start = time.perf_counter()
            _timed(run.log, steps // ROUNDS, 0.0)
        rates.append(steps // ROUNDS * METRICS / (time.perf_counter() - start))
    return call, max(rates)


def _mlflow(folder: Path, steps: int, *, synchronous: bool) -> tuple[float, float]:
    """Measure the same for MLflow's client."""
    import mlflow

    folder.mkdir()
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    open_client(uri)
    mlflow.set_tracking_uri(uri)
    with mlflow.start_run():
        start = time.perf_counter()

        def log(values: dict[str, float], step: int) -> None:
            mlflow.log_metrics(values, step=step, synchronous=synchronous)

        call = _timed(log, steps, 0.0)
        mlflow.flush_async_logging()
        seconds = time.perf_counter() - start
    return call, steps * METRICS / seconds


def _timed(log: Callable[[dict[str, float], int], object], steps: int, pace: float) -> float:
    """Return the mean seconds of a call in the quietest round."""
    taken: list[float] = []
    for step in range(steps):
        values = {f"metric {i}": step * 0.1 + i for i in range(METRICS)}
        start = time.perf_counter()
        log(values, step)
        taken.append(time.perf_counter() - start)
        time.sleep(pace)
    length = steps // ROUNDS
    return min(statistics.fmean(taken[start : start + length]) for start in range(0, steps, length))


if __name__ == "__main__":
    raise SystemExit(main())

"""Holdout metrics of `flight_delay_blend`, the mean of trees and a network, over three seeds fixed beforehand.

Makes the demo's home, launches the pipeline there, and trains its job with the other seeds. Each figure is that of the
ONNX graph that the script handed in. The holdout is only read here. Peers: the logistic regression of the demo
and the naive baseline, by its evaluation.
"""

import dataclasses
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.pipelines.flights_holdout import SEEDS, run_demo
from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.training.script.data import matrix_of
from ml_assets.model.training.script.graph import read_model, run_graph
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher

MODEL = "flight_delay_blend"


def launched(home: Path, day: str) -> Path:
    """Launch the pipeline in the demo's home; return the file of its job."""
    program = Path(sys.executable).with_name("ml-assets")
    environment = {"ML_ASSETS_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)}
    subprocess.run([str(program), "launch", MODEL, day], env=environment, check=True, stdout=sys.stderr)
    [document] = (home / "artifacts" / "training" / MODEL).glob("*/job.json")
    return document


def holdout_figures(job: TrainingJob, folder: Path) -> dict[str, float]:
    """Train (or find) `job` and measure its graph on the holdout."""
    result = LocalLauncher().run(job, folder, lambda event: None, lambda line: None)
    matrix, label = matrix_of(open_snapshot(Path(job.snapshot), job.snapshot_digest).read("holdout"))
    graph = read_model(Path(result.weights))
    assert isinstance(graph, bytes)
    probability = run_graph(graph, matrix).astype(float).reshape(-1)
    return {
        name: metric_named(name, "binary").value(label.astype(float), probability)
        for name in ("auc", "logloss")
    }


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory() as name:
        network, others = run_demo(Path(name))
        document = launched(Path(name), network.partition)
        job = TrainingJob.from_json(document.read_text())
        by_seed = {
            seed: holdout_figures(
                dataclasses.replace(job, seed=seed),
                document.parent if seed == job.seed else Path(name) / f"seed-{seed}",
            )
            for seed in (SEEDS[:1] if arguments.quick else SEEDS)
        }
    results: list[Result] = []
    for metric, bar, sign in (("auc", 0.765, 1), ("logloss", 0.472, -1)):
        values = {f"seed {seed}": figures[metric] for seed, figures in by_seed.items()}
        mean = statistics.mean(values.values())
        results.append(
            Result(
                name=f"{MODEL} holdout {metric}, mean over {len(values)} seeds",
                value=mean,
                unit=metric,
                peers=values | {model: figures[metric] for model, figures in others.items()},
                bar=f"{'≥' if sign > 0 else '≤'} {bar}",
                ok=sign * mean >= sign * bar,
            )
        )
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

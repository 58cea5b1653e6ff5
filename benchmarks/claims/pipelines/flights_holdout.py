"""Holdout metrics of `flight_delay` by the platform's own engine, over three seeds fixed beforehand.

Makes the demo's home once, then trains its own snapshot with each seed. The holdout is only read here. The demo's
evaluation measures the reference model, a logistic regression on the same columns, which depends on no seed.
LightGBM is tuned on the validation rows of the same snapshot. `--quick` takes one seed and two trials.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.training._tabular_tables import encoded
from benchmarks.claims.training.tabular_peers import lightgbm_trial, tuned
from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.training.step.load import load_model, predict
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher

SEEDS = (1, 2, 3)
TRIALS, QUICK_TRIALS = 12, 2
BARS = {"auc": 0.764, "logloss": 0.4705}
LEAST_BETTER = {"auc": 0.005, "logloss": 0.003}
"""Metric → least improvement over the reference model that justifies a network."""


def run_demo(home: Path) -> tuple[TrainingJob, dict[str, dict[str, float]]]:
    """Run the demo; return the job that it trained, and `baseline` and `reference` → metric → value on the holdout."""
    program = Path(sys.executable).with_name("ml-assets")
    environment = {"ML_ASSETS_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)}
    demo = subprocess.run(
        [str(program), "demo", "--json"], env=environment, stdout=subprocess.PIPE, check=True
    )
    facts = json.loads(demo.stdout.splitlines()[-1])
    [document] = (home / "artifacts" / "training" / "flight_delay").glob("*/job.json")
    others = {
        model: {metric: float(facts[f"{model}_{metric}"]) for metric in LEAST_BETTER}
        for model in ("baseline", "reference")
    }
    return TrainingJob.from_json(document.read_text()), others


def holdout_figures(job: TrainingJob, folder: Path) -> dict[str, float]:
    """Train (or find) `job` and measure its best weights on the holdout."""
    result = LocalLauncher().run(job, folder, lambda event: None, lambda line: None)
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest)
    rows = snapshot.read("holdout")
    scores = predict(load_model(job, snapshot.inputs, Path(result.weights)), job.objective, rows)
    labels = rows.label.astype(float)
    return {name: metric_named(name, "binary").value(labels, scores) for name in ("auc", "logloss", "ece")}


def lightgbm_figures(job: TrainingJob, trials: int) -> dict[str, float]:
    """Return metric → value of LightGBM on the holdout, the best of `trials` by the validation rows."""
    splits = encoded(open_snapshot(Path(job.snapshot), job.snapshot_digest))
    scores = tuned(lightgbm_trial, job.objective, splits, trials)("holdout")
    label = splits["holdout"].label
    return {name: metric_named(name, "binary").value(label, scores) for name in LEAST_BETTER}


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory() as name:
        job, others = run_demo(Path(name))
        seeds = SEEDS[:1] if arguments.quick else SEEDS
        by_seed = {
            seed: holdout_figures(dataclasses.replace(job, seed=seed), Path(name) / f"seed-{seed}")
            for seed in seeds
        }
        trees = lightgbm_figures(job, QUICK_TRIALS if arguments.quick else TRIALS)
    results: list[Result] = []
    for metric, sign in (("auc", 1), ("logloss", -1)):
        bar = BARS[metric]
        values = {f"seed {seed}": figures[metric] for seed, figures in by_seed.items()}
        mean = statistics.mean(values.values())
        reference = others["reference"][metric]
        results.append(
            Result(
                name=f"flight_delay holdout {metric}, mean over {len(values)} seeds",
                value=mean,
                unit=metric,
                peers={**values, "LightGBM, tuned": trees[metric]},
                bar=f"{'≥' if sign > 0 else '≤'} {bar}",
                ok=sign * mean >= sign * bar,
            )
        )
        results.append(
            Result(
                name=f"flight_delay holdout {metric} of the reference model (logistic regression, same columns)",
                value=reference,
                unit=metric,
                peers={
                    f"network, mean over {len(values)} seeds": mean,
                    "naive baseline": others["baseline"][metric],
                },
                bar=f"the network is better by ≥ {LEAST_BETTER[metric]}",
                ok=sign * (mean - reference) >= LEAST_BETTER[metric],
            )
        )
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

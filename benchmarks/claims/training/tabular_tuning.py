"""Gain by a study of the default network: 16 trials over the space that a scaffold writes, on three public tables.

The trial with the lowest validation loss is measured on the holdout, beside the settings without a study. The space is
that of `csv_training_pipeline.yaml.j2`; trials run one after another, without a pruner. `--quick` takes 3 trials of one
table.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import optuna

from benchmarks._peers import bare_packages
from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.training._tabular_tables import TABLES, PublicTable, encoded, snapshot_of
from benchmarks.claims.training.tabular_peers import PACKAGES, chosen_by, loss, ours

TRIALS, QUICK_TRIALS = 16, 3
STUDIED = ("modeldata/mlc_churn", "Ecdat/Computers", "modeldata/credit_data")


def measure(table: PublicTable, trials: int) -> Result:
    """Return the holdout loss of the best trial, beside that of the scaffold's settings."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot = snapshot_of(table, folder)
        splits = encoded(snapshot)
        found: list[tuple[float, float]] = []
        """Losses of each training: validation, holdout. The first has the scaffold's settings."""

        def trained(hyperparameters: dict[str, object], settings: dict[str, object]) -> float:
            predict = ours(table, snapshot, folder / f"job-{len(found)}", hyperparameters, settings)
            validation = chosen_by(table.objective, splits["validation"].label, predict("validation"))
            found.append((validation, loss(table.objective, splits["holdout"].label, predict("holdout"))))
            print(f"{table.name} {hyperparameters} {settings} {found[-1]}", file=sys.stderr)
            return validation

        def tried(trial: optuna.Trial) -> float:
            return trained(
                {
                    "dropout": trial.suggest_float("dropout", 0.0, 0.5),
                    "width": trial.suggest_categorical("width", [32, 64, 128]),
                },
                {
                    "learning_rate": trial.suggest_float("learning_rate", 0.0005, 0.02, log=True),
                    "weight_decay": trial.suggest_float("weight_decay", 0.001, 3.0, log=True),
                },
            )

        trained({}, {})
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
        study.optimize(tried, n_trials=trials)
    untuned, best = found[0][1], min(found)[1]
    figure = "1 − AUC" if table.objective == "binary" else "RMSE"
    return Result(
        name=f"holdout {figure} after a study of {trials} trials, {table.name}",
        value=best,
        unit="loss",
        peers={"without a study": untuned},
        ratio=best / untuned,
        bar="≤ without a study",
        ok=best <= untuned,
    )


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    sys.path.append(str(bare_packages(*PACKAGES)))
    tables = [table for table in TABLES if table.name in STUDIED]
    trials = QUICK_TRIALS if arguments.quick else TRIALS
    return emit(
        [measure(table, trials) for table in (tables[:1] if arguments.quick else tables)], json=arguments.json
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())

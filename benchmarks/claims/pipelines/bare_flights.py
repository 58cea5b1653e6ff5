"""The flights model without the platform: one careful hand-written file.

The same source, feature function, fitted encodings, model function, epochs and two torchrun ranks as the pipeline
`flight_delay`, read from its `defs.yaml`. No Dagster, lake, checks, checkpoints or tracker. It prints the seconds of
each stage and the holdout metrics of each seed. `end_to_end.py` compares the platform with it.

The seeds were fixed before the first measurement, and all choices were made on the validation month. The holdout is
only read here.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import yaml

from benchmarks._report import Result, emit, parse_args
from ml_assets.data.features.encoding import FittedState, fit
from ml_assets.data.snapshots.builder import input_spec
from ml_assets.data.tables.user_code import building
from ml_assets.defs import flights
from ml_assets.defs.flights import features, model, source
from resources.job.training_settings import TrainingSettings

SEEDS = (1, 2, 3)
LAST_DAY = date(2013, 12, 31)
LABEL = "late"
SPLITS = ("train", "validation", "holdout")

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Training settings of the pipeline's file."""

    window: dict[str, int]
    """Days of each split, counted back from the last day."""
    min_count: int
    hyperparameters: dict[str, Any]
    settings: TrainingSettings

    @classmethod
    def read(cls) -> "Pipeline":
        """Read the declaration from `defs.yaml`."""
        path = Path(flights.__file__).parent / "flight_delay" / "defs.yaml"
        spec = next(yaml.safe_load_all(path.read_text()))["attributes"]
        return cls(
            window=spec["window"],
            min_count=spec["features"]["min_count"],
            hyperparameters=spec["model"]["hyperparameters"],
            settings=TrainingSettings(**spec["training"]),
        )


@dataclass(frozen=True, kw_only=True)
class BareRun:
    """Result of one seed, from the source to the holdout."""

    seed: int
    auc: float
    logloss: float
    epochs: int
    stages: dict[str, float]
    """Stage → wall seconds."""

    @property
    def seconds(self) -> float:
        """Return the seconds of all stages."""
        return sum(self.stages.values())


def _features(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    return building(features.flight_departures)(tables, date(2013, 1, 1), LAST_DAY)


def bare_run(seed: int) -> BareRun:
    """Run all stages once, in this process and the ranks that it starts."""
    stages: dict[str, float] = {}
    pipeline = Pipeline.read()
    tables = _timed(stages, "read", read_year)
    rows = _timed(stages, "features", lambda: _features(tables))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _timed(stages, "encode", lambda: write_arrays(rows, pipeline, folder))
        _timed(stages, "train", lambda: start_ranks(folder, pipeline.settings.workers, seed))
        auc, logloss = _timed(stages, "score", lambda: score(folder))
        epochs = len(json.loads((folder / "validation.json").read_text()))
    return BareRun(seed=seed, auc=auc, logloss=logloss, epochs=epochs, stages=stages)


def read_year() -> dict[str, pl.DataFrame]:
    """Return all tables as a whole."""
    days = [date(2013, 1, 1) + timedelta(days=i) for i in range(365)]
    return {
        "datasets/flights": pl.concat([source.read_flights(day) for day in days]),
        "datasets/weather": pl.concat([source.read_weather(day) for day in days]),
        "datasets/planes": source.read_planes(),
        "datasets/airports": source.read_airports(),
    }


def write_arrays(rows: pl.DataFrame, pipeline: Pipeline, folder: Path) -> None:
    """Split by date, fit on the training days, and write each split's arrays as `.npy`."""
    labelled = rows.drop_nulls(LABEL)
    end = LAST_DAY
    parts: dict[str, pl.DataFrame] = {}
    for split in reversed(SPLITS):
        start = end - timedelta(days=pipeline.window[split] - 1)
        parts[split] = labelled.filter(pl.col("partition_date").is_between(start, end))
        end = start - timedelta(days=1)
    fitted = fit(parts["train"], features.NUMERIC, features.CATEGORICAL, pipeline.min_count)
    (folder / "fitted.json").write_text(fitted.to_json())
    fill = np.array([column.standardised_fill for column in fitted.numeric], dtype=np.float32)
    for split, part in parts.items():
        numeric, category = fitted.encode(part)
        np.save(folder / f"{split}-numeric.npy", np.where(np.isnan(numeric), fill, numeric))
        np.save(folder / f"{split}-category.npy", category.astype(np.int64))
        np.save(folder / f"{split}-label.npy", part[LABEL].cast(pl.Float32).to_numpy())


def start_ranks(folder: Path, workers: int, seed: int) -> None:
    """Run torchrun on this file: each rank runs `train_rank`."""
    ranks = [f"--nproc-per-node={workers}", __file__, str(folder), str(seed)]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *ranks],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )


def train_rank(folder: Path, seed: int) -> None:
    """Train with AdamW, one cycle, clipping and early stopping. Rank 0 writes the best weights and the losses."""
    import torch
    from torch.distributed import (
        all_reduce,
        destroy_process_group,
        get_rank,
        get_world_size,
        init_process_group,
    )
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.utils import clip_grad_norm_

    torch.set_num_threads(1)
    init_process_group("gloo")
    rank, world = get_rank(), get_world_size()
    pipeline = Pipeline.read()
    settings = pipeline.settings
    torch.manual_seed(seed)
    core = new_model(folder, pipeline)
    replica = DistributedDataParallel(core)
    torch.manual_seed(1000 * seed + rank)  # dropout differs between ranks
    optimizer = torch.optim.AdamW(
        core.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    numeric, category, label = load(folder, "train")
    steps_per_epoch = -(-len(label) // settings.global_batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        settings.learning_rate,
        total_steps=settings.epochs * steps_per_epoch,
        pct_start=settings.warmup_fraction,
        cycle_momentum=False,
    )
    held = [part[rank::world] for part in load(folder, "validation")]
    losses: list[float] = []
    for epoch in range(settings.epochs):
        core.train()
        order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(label)))
        for batch in order.split(settings.global_batch):
            mine = batch[rank::world]
            loss = cross_entropy(replica(numeric[mine], category[mine]), label[mine])
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(core.parameters(), settings.clip_norm)
            optimizer.step()
            schedule.step()
        core.eval()
        with torch.no_grad():
            total = cross_entropy(core(held[0], held[1]), held[2], reduction="sum")
            sums = torch.tensor([total.item(), len(held[2])], dtype=torch.float64)
        all_reduce(sums)
        losses.append((sums[0] / sums[1]).item())
        if losses[-1] == min(losses) and rank == 0:
            torch.save(core.state_dict(), folder / "best.pt")
        if epoch - int(np.argmin(losses)) >= settings.patience:
            break
    if rank == 0:
        (folder / "validation.json").write_text(json.dumps(losses))
    destroy_process_group()


def new_model(folder: Path, pipeline: Pipeline) -> Any:
    """Return the pipeline's model, untrained."""
    fitted = FittedState.from_json((folder / "fitted.json").read_text())
    return model.build(input_spec(fitted), **pipeline.hyperparameters)


def load(folder: Path, split: str) -> list[Any]:
    """Return numeric `[N, F]`, category `[N, C]` and label `[N]` as tensors."""
    import torch

    return [
        torch.from_numpy(np.load(folder / f"{split}-{part}.npy")) for part in ("numeric", "category", "label")
    ]


def score(folder: Path) -> tuple[float, float]:
    """Return AUC and log loss on the holdout."""
    import torch

    from ml_assets.model.evaluation.metrics.metrics import metric_named

    core = new_model(folder, Pipeline.read())
    core.load_state_dict(torch.load(folder / "best.pt"))
    core.eval()
    numeric, category, label = load(folder, "holdout")
    with torch.no_grad():
        probability = torch.sigmoid(core(numeric, category).double()).numpy()
    y = label.double().numpy()
    auc, logloss = (metric_named(name, "binary").value(y, probability) for name in ("auc", "logloss"))
    return auc, logloss


def _timed(stages: dict[str, float], stage: str, work: Callable[[], _Answer]) -> _Answer:
    start = time.perf_counter()
    answer = work()
    stages[stage] = time.perf_counter() - start
    return answer


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    runs: list[BareRun] = []
    for seed in SEEDS[:1] if arguments.quick else SEEDS:
        runs.append(bare_run(seed))
    auc, logloss = (float(np.mean([getattr(run, name) for run in runs])) for name in ("auc", "logloss"))
    seconds = runs[0].seconds
    by_seed: dict[str, dict[str, float]] = {
        name: {f"seed {run.seed}": getattr(run, name) for run in runs} for name in ("auc", "logloss")
    }
    # Only the first run reads the source: it keeps the year for the process.
    stages = runs[0].stages
    results = [
        Result(
            name="holdout AUC of the bare flights script, mean over seeds",
            value=auc,
            unit="AUC",
            peers=by_seed["auc"],
            bar="≥ 0.725",
            ok=auc >= 0.725,
        ),
        Result(
            name="holdout log loss of the bare flights script, mean over seeds",
            value=logloss,
            unit="nats",
            peers=by_seed["logloss"],
            bar="≤ 0.503",
            ok=logloss <= 0.503,
        ),
        Result(
            name="bare flights script from source to holdout, one seed",
            value=seconds,
            unit="s",
            peers=stages,
            bar="none: it is the peer in end_to_end.py",
            ok=True,
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:  # set by torchrun
        train_rank(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        raise SystemExit(main())

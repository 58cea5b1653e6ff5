"""Pipelines of a simulation, each a watched dataset, its feature table and a model, in a home that holds their days.

Their rows are few: the simulation is about numbers of tables, partitions and runs. Not here: what is measured.
"""

import os
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from benchmarks.claims.data._tick_tables import COLUMNS, FEATURE_COLUMNS, FIRST, HERE, NEWEST
from ml_assets.assembly import build_defs
from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.foundation.code.syntax import reading_once
from resources.settings import Settings

HOME_HERE = "benchmarks.claims.data._many_pipelines"
SIMULATED = "SIMULATED_PIPELINES"
"""Variable with the numbers of pipelines and of partitions, and the home, of the definitions `defs`."""


def build(inputs: Any) -> Any:
    """Return a linear model; `forward(numeric [B, F], category [B, 0]) -> [B]`."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(len(inputs.numeric), 1), torch.nn.Flatten(0))


def name_of(number: int) -> str:
    """Return the name of a pipeline's dataset, feature table and model, without their prefixes."""
    return f"p{number:04}"


def components(number: int, partitions: int) -> list[SpecComponent]:
    """Return the components of a pipeline."""
    name = name_of(number)
    declared = {
        "cadence": "daily",
        "start": FIRST.isoformat(),
        "end": (FIRST + timedelta(days=partitions - 1)).isoformat(),
    }
    dataset = {
        "name": name,
        "source": {"function": f"{HERE}.read", "latest": f"{HERE}.latest", "watch": {}},
        "partitions": declared,
        "contract": {"primary_key": ["at"], "event_time": "at", "columns": COLUMNS},
        "freshness": {"fail_after_hours": 48},
    }
    features = {
        "name": name,
        "function": f"{HERE}.features",
        "inputs": [{"table": f"datasets/{name}", "lookback": 1, "known_at": []}],
        "partitions": declared,
        "labels": ["label", "label_known_at"],
        "contract": {"primary_key": ["at"], "columns": FEATURE_COLUMNS},
    }
    model = {
        "name": f"m_{name}",
        "partitions": declared,
        "features": {
            "table": f"features/{name}",
            "numeric": ["number"],
            "label": "label",
            "label_known_at": "label_known_at",
            "primary_key": ["at"],
        },
        "window": {"train": 20, "validation": 4, "holdout": 6},
        "model": {"function": f"{HOME_HERE}.build"},
        "training": {"epochs": 1, "global_batch": 8, "learning_rate": 0.1, "device": "cpu"},
        "evaluation": {
            "objective": "regression",
            "bootstrap_unit": "partition_date",
            "gates": [{"name": "low error", "metric": "rmse", "at_most": 1e9}],
        },
    }
    kinds: list[tuple[type[SpecComponent], dict[str, Any]]] = [
        (Dataset, dataset),
        (FeatureTable, features),
        (TrainingPipeline, model),
    ]
    return [kind(kind.spec_type.model_validate(attributes)) for kind, attributes in kinds]


def day_of(partition: int) -> date:
    """Return the day of a partition by its number."""
    return FIRST + timedelta(days=partition)


def asset(name: str) -> dg.AssetKey:
    """Return `a/b` as a key."""
    return dg.AssetKey(name.split("/"))


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the variable `SIMULATED`, for Dagster's pages."""
    pipelines, partitions, home = os.environ[SIMULATED].split(",", 2)
    NEWEST[0] = day_of(int(partitions) - 1)
    with reading_once():  # as the definitions of a project
        declared = [one for number in range(int(pipelines)) for one in components(number, int(partitions))]
        return build_defs(Settings(home=Path(home)), components=declared)

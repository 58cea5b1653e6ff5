"""The readings' pipeline with a label for each objective beside the numbers of `readings_pipeline`."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from ml_assets.components.base import SpecComponent
from ml_assets_tests.components.installation import readings_components
from ml_assets_tests.components.readings_pipeline import FEATURE_TABLE, HOURS, PIPELINE, shifts

HERE = "ml_assets_tests.components.objectives_pipeline"


def levels(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
    """Return the rows of `shifts` with the output as one of a few words."""
    word = pl.when(pl.col("made") > 60).then(pl.lit("absurd")).when(pl.col("made") > 26).then(pl.lit("high"))
    word = word.when(pl.col("made") > 20).then(pl.lit("medium")).otherwise(pl.lit("low"))
    return shifts(inputs, first, last).with_columns(word.alias("made"))


def whole(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
    """Return the rows of `shifts` with the output in whole numbers."""
    return shifts(inputs, first, last).with_columns(pl.col("made").round().cast(pl.Int64))


def busy(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
    """Return the rows of `shifts` with 1 for a large output, else 0; later hours are `worth` more, the first none."""
    return shifts(inputs, first, last).with_columns(
        (pl.col("made") > 22).cast(pl.Float32).alias("made"),
        (pl.col("at").dt.hour().cast(pl.Float32) - HOURS[0]).alias("worth"),
    )


def grades(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
    """Return the rows of `shifts` with the output as a grade from 0 to 2: the machines of an hour form a list."""
    grade = (pl.col("made") > 20).cast(pl.Int64) + (pl.col("made") > 30).cast(pl.Int64)
    return shifts(inputs, first, last).with_columns(grade.alias("made"))


def missing(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Return the mean output beyond the predicted, with the same weight for each machine."""
    lacking = np.maximum(label - prediction, 0)
    machines = set(group[weight > 0])
    return float(
        np.mean([np.average(lacking[group == one], weights=weight[group == one]) for one in machines])
    )


def labelled(
    function: str, dtype: str, objective: str, *, sensitive: str = "", weight: str = "", **changes: Any
) -> list[SpecComponent]:
    """Return the readings' components with another label, a `sensitive` column, and rows weighted by `weight`.

    `changes` are of the pipeline's sections.
    """
    columns = [
        {"name": "made", "dtype": dtype}
        if column["name"] == "made"
        else column | ({"sensitive": True} if column["name"] == sensitive else {})
        for column in FEATURE_TABLE["contract"]["columns"]
    ]
    columns += [{"name": weight, "dtype": "float32", "ge": 0}] if weight else []
    sections = {
        "model": {"function": PIPELINE["model"]["function"], "hyperparameters": {"start": 0.0}},
        "training": PIPELINE["training"] | {"learning_rate": 0.2},
        "features": PIPELINE["features"] | ({"weight": weight} if weight else {}),
        **changes,
    }
    sections["evaluation"] = PIPELINE["evaluation"] | {"objective": objective} | changes["evaluation"]
    return readings_components(
        features={
            "function": f"{HERE}.{function}",
            "contract": FEATURE_TABLE["contract"] | {"columns": columns},
        },
        pipeline=sections,
    )

"""The readings' pipeline with a label for each objective beside the numbers of `readings_pipeline`."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from ml_assets.components.base import SpecComponent
from ml_assets_tests.components.installation import readings_components
from ml_assets_tests.components.readings_pipeline import FEATURE_TABLE, PIPELINE, shifts

HERE = "ml_assets_tests.components.objectives_pipeline"


def levels(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the rows of `shifts` with the output as one of a few words."""
    word = pl.when(pl.col("made") > 60).then(pl.lit("absurd")).when(pl.col("made") > 26).then(pl.lit("high"))
    word = word.when(pl.col("made") > 20).then(pl.lit("medium")).otherwise(pl.lit("low"))
    return shifts(inputs, first, last).with_columns(word.alias("made"))


def whole(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the rows of `shifts` with the output in whole numbers."""
    return shifts(inputs, first, last).with_columns(pl.col("made").round().cast(pl.Int64))


def busy(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the rows of `shifts` with 1 for a large output, else 0."""
    return shifts(inputs, first, last).with_columns((pl.col("made") > 22).cast(pl.Float32).alias("made"))


def grades(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the rows of `shifts` with the output as a grade from 0 to 2: the machines of an hour form a list."""
    grade = (pl.col("made") > 20).cast(pl.Int64) + (pl.col("made") > 30).cast(pl.Int64)
    return shifts(inputs, first, last).with_columns(grade.alias("made"))


UNREAD = [f"unread_{number:02}" for number in range(20)]


def with_unread(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the rows of `shifts` with 20 columns of numbers that no model reads."""
    numbers = [
        (pl.col("load") * (place + 1)).cast(pl.Float64).alias(name) for place, name in enumerate(UNREAD)
    ]
    return shifts(inputs, first, last).with_columns(numbers)


TEXT_TOKENS = 14


def sentences(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """Return the rows of `shifts` with a text that says machine and load, and its letters less one as the label."""
    rows = shifts(inputs, first, last).collect()
    level = pl.when(pl.col("load") > 0.5).then(pl.lit("high")).otherwise(pl.lit("low"))
    texts = rows.select(pl.format("{} is {}", "machine", level)).to_series()
    return rows.with_columns(
        texts.cast(pl.Binary).alias("text"),
        (texts.str.len_bytes().cast(pl.Int64) - 1).alias("made"),
    )


def too_few(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """Return the rows of `sentences` with a label of one token less for one machine."""
    rows = sentences(inputs, first, last)
    return rows.with_columns(pl.col("made") - (pl.col("machine") == "mill").cast(pl.Int64))


def read_letters(content: bytes) -> np.ndarray:
    """`[14]` int64: bytes below 128, and -1 behind the last one."""
    tokens = np.full(14, -1, dtype=np.int64)
    tokens[: len(content)] = np.frombuffer(content, dtype=np.uint8)
    return tokens


def next_letter(inputs: Any) -> Any:
    """A model that knows the letter and its place: `forward(…, blob [B, 14] int64) -> [B, 14, ids]`."""
    import torch
    from torch import nn

    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.after = nn.Embedding(inputs.outputs, inputs.outputs)
            self.place = nn.Parameter(torch.zeros(TEXT_TOKENS, inputs.outputs))

        def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
            return self.after(blob.clamp(min=0)) + self.place

    return Letters()


def missing(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Return the mean output beyond the predicted, with the same weight for each machine."""
    lacking = np.maximum(label - prediction, 0)
    machines = set(group[weight > 0])
    return float(
        np.mean([np.average(lacking[group == one], weights=weight[group == one]) for one in machines])
    )


def labelled(
    function: str, dtype: str, objective: str, *, sensitive: str = "", **changes: Any
) -> list[SpecComponent]:
    """Return the readings' components with another label, and a `sensitive` column.

    `changes` are of the pipeline's sections.
    """
    columns = [
        {"name": "made", "dtype": dtype}
        if column["name"] == "made"
        else column | ({"sensitive": True} if column["name"] == sensitive else {})
        for column in FEATURE_TABLE["contract"]["columns"]
    ]
    sections = {
        "model": {"function": PIPELINE["model"]["function"], "hyperparameters": {"start": 0.0}},
        "training": PIPELINE["training"] | {"learning_rate": 0.2},
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

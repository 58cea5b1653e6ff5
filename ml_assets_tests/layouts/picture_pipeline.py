"""The readings pipeline with a camera: a picture alone shows how much a machine is loaded, and one machine at times has
none.

Here: source, features, model and `decode` of such a pipeline, and its declarations, as changes of the readings'.
"""

import zlib
from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.readings_pipeline import DATASET, FEATURE_TABLE, PIPELINE, READINGS

SIDE = 8
HERE = "ml_assets_tests.layouts.picture_pipeline"
BLIND = pl.col("machine").eq("press") & pl.col("at").dt.hour().eq(6) & pl.col("at").dt.day().le(10)
"""Rows of the first days whose camera is off."""


def picture(load: float) -> bytes:
    """Return a picture of which this share is bright."""
    bright = np.arange(SIDE * SIDE) < round(load * SIDE * SIDE)
    return zlib.compress(np.where(bright, np.uint8(250), np.uint8(10)).astype(np.uint8).tobytes())


def decode(content: bytes) -> np.ndarray:
    """`[8, 8]` uint8."""
    return np.frombuffer(zlib.decompress(content), dtype=np.uint8).reshape(SIDE, SIDE)


def uncompressed(content: bytes) -> np.ndarray:
    """Takes pictures for what they are not."""
    return np.frombuffer(content, dtype=np.uint8).reshape(SIDE, SIDE)


def read_readings(day: date) -> pl.DataFrame:
    """Return the rows of the readings, and a picture of each."""
    rows = readings_pipeline.read_readings(day)
    pictures = pl.Series("picture", [picture(load) for load in rows["load"]], dtype=pl.Binary)
    return rows.with_columns(pictures).with_columns(pl.when(~BLIND).then(pl.col("picture")))


def shifts(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the features of the readings, with the picture in the place of the load."""
    rows = readings_pipeline.shifts({READINGS: inputs[READINGS].drop("picture")}, first, last)
    return rows.drop("load").join(inputs[READINGS].select("at", "machine", "picture"), on=["at", "machine"])


def build(inputs: Any) -> Any:
    """`forward(numeric [B, F], category [B, C], blob [B, 8, 8]) -> [B]`."""
    import torch
    from torch import nn

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = nn.Embedding(inputs.cardinalities[0], 1)
            self.seen = nn.Linear(SIDE * SIDE, 1)
            nn.init.constant_(self.level.weight, 18.0)

        def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
            bright = blob.flatten(1).float() / 255 - 0.5
            return (self.level(category[:, 0]) + self.seen(bright)).squeeze(1)

    return Looking()


def _with_picture(columns: list[dict[str, Any]], *, instead_of: str = "") -> dict[str, Any]:
    kept = [column for column in columns if column["name"] != instead_of]
    return {"columns": [*kept, {"name": "picture", "dtype": "binary", "nullable": True}]}


DATASET_CHANGES: dict[str, Any] = {
    "source": DATASET["source"] | {"function": f"{HERE}.read_readings"},
    "contract": DATASET["contract"] | _with_picture(DATASET["contract"]["columns"]),
}
FEATURE_CHANGES: dict[str, Any] = {
    "function": f"{HERE}.shifts",
    "contract": FEATURE_TABLE["contract"]
    | _with_picture(FEATURE_TABLE["contract"]["columns"], instead_of="load"),
}
PIPELINE_CHANGES: dict[str, Any] = {
    "features": PIPELINE["features"]
    | {
        "numeric": ["made_yesterday"],
        "blob": {"column": "picture", "decode": f"{HERE}.decode"},
    },
    "model": {"function": f"{HERE}.build"},
}

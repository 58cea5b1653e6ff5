"""The pipeline of the readings with two more columns: `crew`, which only its evaluation reads, and `note`, which
nothing reads. The source system is that of `readings_pipeline`, whose days a test can spoil."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import polars as pl

from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.readings_pipeline import READINGS

HERE = "ml_assets_tests.components.noted_pipeline"
ADDED = [{"name": "crew", "dtype": "string"}, {"name": "note", "dtype": "string"}]
CHANGED: dict[str, Mapping[str, pl.Expr]] = {}
"""Day → column → its other values."""


def read_readings(day: date) -> pl.DataFrame:
    """Return the readings of a day with both columns."""
    rows = readings_pipeline.read_readings(day)
    rows = rows.with_columns(crew=pl.lit("early"), note=pl.lit("a tpyo"))
    return rows.with_columns(**CHANGED.get(day.isoformat(), {}))


def shifts(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the features of the readings, with both columns."""
    made = readings_pipeline.shifts(inputs, first, last)
    more = inputs[READINGS].select("at", "machine", "crew", "note")
    return made.join(more, on=["at", "machine"], how="left", maintain_order="left")


def shifts_again(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the same features by other code."""
    return shifts(inputs, first, last).with_columns(pl.col("note"))


def _with_columns(declared: Mapping[str, Any], notes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    contract = declared["contract"]
    crew, note = ADDED
    return {"contract": {**contract, "columns": [*contract["columns"], crew, {**note, **(notes or {})}]}}


def dataset(**notes: Any) -> dict[str, Any]:
    """Return the changed attributes of the dataset. `notes`: rules of its contract about the notes."""
    source = {"function": f"{HERE}.read_readings", "latest": f"{readings_pipeline.HERE}.latest"}
    return {"source": source, **_with_columns(readings_pipeline.DATASET, notes)}


FEATURES = {"function": f"{HERE}.shifts", **_with_columns(readings_pipeline.FEATURE_TABLE)}
"""Changed attributes of the feature table."""
PIPELINE = {
    "evaluation": {
        **readings_pipeline.PIPELINE["evaluation"],
        "slices": ["machine", "crew"],
        "gates": readings_pipeline.PIPELINE["evaluation"]["gates"][:1],
    }
}
"""Changed attributes of the model."""

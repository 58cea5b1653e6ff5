"""Models from elsewhere for counts, classes and lists, registered by the command in variants of an example pipeline."""

import json
import re
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ml_assets_tests.api.foreign_models import LAST_DAY, MODEL, PARTITION, encoded, linear
from ml_assets_tests.tour.pages import ROOT, Checkout

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]
"""A home with a year of weeks, and an evaluation for each kind: two minutes on idle cores."""

COLUMNS = """      - {name: amount, dtype: string}
      - {name: page, dtype: string}
"""
AMOUNT_AND_PAGE = """        pl.when(pl.col("units") < 40)
        .then(pl.lit("few"))
        .otherwise(pl.lit("many"))
        .alias("amount"),
        (pl.col("week").cast(pl.String) + pl.col("store")).alias("page"),
"""
CLASSES = ("few", "many")
KINDS: Mapping[str, dict[str, str]] = {
    "count": {"objective: regression": "objective: count", "metric: rmse": "metric: poisson_deviance"},
    "ranking 5": {
        "objective: regression": "objective: ranking 5\n    group: page",
        "metric: rmse": "metric: ndcg",
        "slices: [product]": "slices: []",
    },
    "multiclass": {
        "    label: units": "    label: amount",
        "objective: regression": "objective: multiclass",
        "metric: rmse": "metric: logloss",
        ", entity: [store, product]": "",
    },
}
"""Objective → changes of the pipeline's declaration."""


@pytest.fixture(scope="module")
def declared(checkout: Checkout) -> str:
    """The declaration whose table has a class and a list beside the number of units; its tables are built."""
    folder = checkout.folder / "ml_assets" / "defs" / MODEL
    shutil.copytree(ROOT / "ml_assets" / "defs" / MODEL, folder, ignore=shutil.ignore_patterns("__pycache__"))
    features = folder / "features.py"
    before, number, rest = features.read_text().partition('        pl.col("units").cast(pl.Float32),\n')
    features.write_text(before + number + AMOUNT_AND_PAGE + rest)
    file = folder / "defs.yaml"
    text = _changed(
        file.read_text(),
        {
            "labels: [units,": "labels: [units, amount,",
            "      - {name: units, dtype: float32, ge: 0, description: The label.}\n": (
                "      - {name: units, dtype: float32, ge: 0}\n" + COLUMNS
            ),
        },
    )
    file.write_text(text)
    first = {"datasets/sales": "2023-01-09", "features/sales_features": "2023-02-06"}
    answers = checkout.answers(
        [f"ml-assets launch {table} {day}..{PARTITION}" for table, day in first.items()]
    )
    assert [status for status, _ in answers] == [0, 0], answers
    return text


def _changed(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def _document(kind: str) -> dict[str, Any]:
    """Return the mean of the last weeks as the answer; for classes, as the score of `many`."""
    numbers = {"units_mean_4w": 1.0}
    rows = [{"units_mean_4w": mean, "product": "bread"} for mean in (10.0, 20.0, 90.0)]
    document: dict[str, Any] = {
        "model": MODEL,
        "partition": PARTITION,
        "origin": "by hand",
        "trained_on": {"first": "2023-02-06", "last": LAST_DAY},
        "inputs": [
            {"name": "units_mean_4w", "dtype": "float32"},
            {"name": "product", "dtype": "string", "vocabulary": ["bread"]},
        ],
    }
    model = linear(numbers, {"bread": 0.0})
    expected: list[Any] = [row["units_mean_4w"] for row in rows]
    if kind == "multiclass":
        _with_classes(model)
        scores = np.exp(np.array([[0.0, 0.02 * mean] for mean in expected]))
        expected = (scores / scores.sum(axis=1, keepdims=True)).tolist()
        document["classes"] = list(CLASSES)
    golden = [{"inputs": row, "expected": one} for row, one in zip(rows, expected, strict=True)]
    return document | {"golden": golden, "onnx": encoded(model)}


def _with_classes(model: onnx.ModelProto) -> None:
    """Let the graph answer a probability for each class."""
    graph = model.graph
    graph.node[-1].output[0] = "mean"
    graph.initializer.append(helper.make_tensor("steepness", TensorProto.FLOAT, [1, 2], [0.0, 0.02]))
    graph.node.extend(
        [
            helper.make_node("MatMul", ["mean", "steepness"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["answer"], axis=1),
        ]
    )
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(CLASSES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_each_kind_is_evaluated_by_the_pipeline(
    checkout: Checkout, declared: str, kind: str
) -> None:
    (checkout.folder / "ml_assets" / "defs" / MODEL / "defs.yaml").write_text(_changed(declared, KINDS[kind]))
    file = checkout.folder / "model.json"
    file.write_text(json.dumps(_document(kind)))
    [(status, said)] = checkout.answers([f"ml-assets register {file}"])
    assert status == 0, said
    assert re.search(rf"^  {MODEL}/evaluation: decision (blessed|rejected|undecided)", said, re.MULTILINE), (
        said
    )

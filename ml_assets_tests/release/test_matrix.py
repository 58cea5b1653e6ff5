"""Bundles of models that are not torch: their own ONNX graph behind the raw columns."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper

from ml_assets.data.features.encoding import FittedState
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import BundleStore
from ml_assets.model.release.onnx_graph import MatrixGraph
from ml_assets.model.release.runtime import ServingModel

NUMBER = TensorProto.FLOAT


def weighted_sum(width: int, *, out: int = 1, opset: int = 17) -> onnx.ModelProto:
    """`[rows, width]` → `[rows, out]`: every column times its place from 1, what is missing counted as -1."""
    weights = np.repeat(np.arange(1, width + 1, dtype=np.float32), out)
    nodes = [
        helper.make_node("IsNaN", ["x"], ["missing"]),
        helper.make_node("Where", ["missing", "instead", "x"], ["known"]),
        helper.make_node("MatMul", ["known", "weights"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "weighted",
        [helper.make_tensor_value_info("x", NUMBER, ["rows", width])],
        [helper.make_tensor_value_info("y", NUMBER, ["rows", out])],
        initializer=[
            helper.make_tensor("instead", NUMBER, [], [-1.0]),
            helper.make_tensor("weights", NUMBER, [width, out], weights),
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def failing_above(width: int, limit: float) -> onnx.ModelProto:
    """`weighted_sum`, which onnxruntime cannot run for a row whose first column is above `limit`."""
    model = weighted_sum(width)
    nodes = [
        helper.make_node("Gather", ["known", "first"], ["column"], axis=1),
        helper.make_node("Greater", ["column", "limit"], ["above"]),
        helper.make_node("Cast", ["above"], ["place"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["only", "place"], ["zero"]),  # only place 0 exists
        helper.make_node("Add", ["sum", "zero"], ["y"]),
    ]
    model.graph.node[-1].output[0] = "sum"
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        [
            helper.make_tensor("first", onnx.TensorProto.INT64, [1], [0]),
            helper.make_tensor("limit", NUMBER, [], [limit]),
            helper.make_tensor("only", NUMBER, [1], [0.0]),
        ]
    )
    return model


def expected(fitted: FittedState, frame: pl.DataFrame) -> np.ndarray:
    numeric, category = fitted.encode(frame)
    matrix = np.nan_to_num(np.hstack([numeric, category]).astype(np.float64), nan=-1.0)
    return matrix @ np.arange(1, matrix.shape[1] + 1)


@pytest.mark.parametrize(
    ("numeric", "category"),
    [(["hour", "delay"], ["carrier", "gate"]), (["hour"], []), ([], ["gate"])],
    ids=["both kinds", "numbers", "categories"],
)
def test_a_graph_of_the_matrix_is_served_from_raw_columns(
    make_contents: Callable[..., BundleContents],
    store: BundleStore,
    rows: pl.DataFrame,
    numeric: list[str],
    category: list[str],
) -> None:
    contents = make_contents(numeric, category, "regression")
    graph = MatrixGraph(weighted_sum(len(numeric) + len(category)).SerializeToString())
    bundle = build_bundle(replace(contents, module=graph), store)
    served = ServingModel.load(bundle.folder)
    np.testing.assert_allclose(served.predict(rows), expected(contents.fitted, rows), rtol=1e-6)
    np.testing.assert_allclose(served.predict(rows[3]), expected(contents.fitted, rows[3]), rtol=1e-6)
    assert build_bundle(replace(contents, module=graph), store).digest == bundle.digest

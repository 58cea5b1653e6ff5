"""Model as an ONNX graph with one matrix as input, the form that libraries other than torch can write.

Here: its predictions, and the same graph behind the inputs of every exported model (`numeric`, `category`). Not here:
checking the graph that a script returns (training.script.graph), the inputs for raw columns (`onnx_graph`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (onnx and onnxruntime are typed in part)

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import FittedState
from ml_assets.model.training.script.graph import inputs_of, run_graph

if TYPE_CHECKING:
    import onnx

_OWN = "own/"
"""Prefix of every name in the original graph."""


@dataclass(frozen=True)
class MatrixGraph:
    """ONNX graph with one input, `[rows, F + C]` float32, and one output, `[rows]`, `[rows, 1]` or `[rows, classes]`.

    The input holds standardised numbers, NaN where missing, then category ids. The output is a probability, a value, or
    a probability for each class.
    """

    content: bytes
    """The `onnx.ModelProto`, serialized."""

    def predictions(self, fitted: FittedState, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return the original graph's `[rows]` or `[rows, classes]` predictions for raw rows, float64."""
        numeric, category = fitted.encode(frame)
        matrix = np.hstack([numeric, category.astype(np.float32)])
        return run_graph(self.content, matrix).astype(np.float64).reshape(-1, *_classes(fitted))

    def core(self, fitted: FittedState) -> "onnx.ModelProto":
        """Return the graph with inputs `numeric` `[rows, F]` float32 and `category` `[rows, C]` int64.

        An input without columns is left out. The output is `[rows]` float32, or `[rows, classes]`.
        """
        import onnx
        from onnx import TensorProto, helper

        model = onnx.compose.add_prefix(onnx.load_model_from_string(self.content), prefix=_OWN)
        matrix, answer = inputs_of(model.graph)[0].name, model.graph.output[0].name
        parts: list[str] = []
        nodes: list[Any] = []
        inputs: list[Any] = []
        if fitted.numeric:
            parts.append("numeric")
            inputs.append(
                helper.make_tensor_value_info("numeric", TensorProto.FLOAT, ["rows", len(fitted.numeric)])
            )
        if fitted.categorical:
            parts.append("ids")
            nodes.append(helper.make_node("Cast", ["category"], ["ids"], to=TensorProto.FLOAT))
            inputs.append(
                helper.make_tensor_value_info(
                    "category", TensorProto.INT64, ["rows", len(fitted.categorical)]
                )
            )
        nodes.append(helper.make_node("Concat", parts, [matrix], axis=1))
        nodes.extend(model.graph.node)
        nodes.append(helper.make_node("Cast", [answer], ["number"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Reshape", ["number", "shape"], ["answer"]))
        shape = [-1, *_classes(fitted)]
        graph = helper.make_graph(
            nodes,
            "matrix_to_prediction",
            inputs,
            [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["rows", *_classes(fitted)])],
            initializer=[
                *model.graph.initializer,
                helper.make_tensor("shape", TensorProto.INT64, [len(shape)], shape),
            ],
        )
        core = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        core.functions.extend(model.functions)
        return core


def _classes(fitted: FittedState) -> list[int]:
    """Return the size of a prediction beyond its rows: the number of classes, or nothing."""
    return [len(fitted.classes)] if fitted.classes else []

"""A model as an ONNX graph of one matrix: what libraries that are not torch can write.

Here: what such a graph must be, its answers, and the same graph behind the inputs that every exported model has
(`numeric`, `category`). Not here: the raw columns in front of those (graph), making the graph (whoever trained).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (onnx and onnxruntime are typed in part)

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.features.encoding import FittedState

if TYPE_CHECKING:
    import onnx

_OWN = "own/"
"""Prefix of every name of the graph itself."""


class GraphRefused(ValueError):
    """An ONNX graph cannot be put behind raw columns; the message says what it must look like."""


@dataclass(frozen=True)
class MatrixGraph:
    """A graph of one input, `[rows, F + C]` float32 (standardised numbers, NaN where missing, then category ids), and
    one output, `[rows]` or `[rows, 1]`: a probability or a value."""

    content: bytes
    """The `onnx.ModelProto`, serialized."""

    def predictions(self, fitted: FittedState, frame: pl.DataFrame) -> NDArray[np.float64]:
        """`[rows]` answers of the graph itself to raw rows. Raises `GraphRefused`."""
        import onnxruntime as ort

        self._checked(fitted)
        numeric, category = fitted.encode(frame)
        matrix = np.hstack([numeric, category.astype(np.float32)])
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])
        outputs: Any = session.run(None, {session.get_inputs()[0].name: matrix})
        answer = np.asarray(outputs[0], dtype=np.float64)
        if answer.size != frame.height:
            raise GraphRefused(
                f"the ONNX graph gave an output of shape {answer.shape} for {frame.height} rows: it must be "
                f"({frame.height},) or ({frame.height}, 1), one number a row"
            )
        return answer.reshape(-1)

    def core(self, fitted: FittedState) -> "onnx.ModelProto":
        """The graph with the inputs `numeric` `[rows, F]` float32 and `category` `[rows, C]` int64, where there are
        such columns, and an output `[rows]` float32. Raises `GraphRefused`."""
        import onnx
        from onnx import TensorProto, helper

        model = onnx.compose.add_prefix(self._checked(fitted), prefix=_OWN)
        matrix, answer = _inputs_of(model.graph)[0].name, model.graph.output[0].name
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
        nodes.append(helper.make_node("Reshape", ["number", "one a row"], ["answer"]))
        graph = helper.make_graph(
            nodes,
            "matrix_to_prediction",
            inputs,
            [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["rows"])],
            initializer=[
                *model.graph.initializer,
                helper.make_tensor("one a row", TensorProto.INT64, [1], [-1]),
            ],
        )
        core = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        core.functions.extend(model.functions)
        return core

    def _checked(self, fitted: FittedState) -> "onnx.ModelProto":
        import onnx
        from google.protobuf.message import DecodeError
        from onnx import TensorProto

        width = len(fitted.numeric) + len(fitted.categorical)
        try:
            model = onnx.load_model_from_string(self.content)
            onnx.checker.check_model(model)
        except (DecodeError, onnx.checker.ValidationError) as error:
            raise GraphRefused(f"what was handed in is no ONNX graph: {error}") from error
        inputs, outputs = _inputs_of(model.graph), model.graph.output
        if len(inputs) != 1 or len(outputs) != 1:
            raise GraphRefused(
                f"the ONNX graph has inputs {[one.name for one in inputs]} and outputs "
                f"{[one.name for one in outputs]}: it must have one input, the matrix [rows, {width}], and one output, "
                "a number a row (of a classifier the probability of the second class)"
            )
        taken = inputs[0].type.tensor_type
        columns = taken.shape.dim[-1].dim_value if len(taken.shape.dim) == 2 else -1
        if taken.elem_type != TensorProto.FLOAT or columns not in (0, width):  # 0: any number
            raise GraphRefused(
                f"the input {inputs[0].name} of the ONNX graph must be [rows, {width}] float32: "
                f"{len(fitted.numeric)} numbers, then {len(fitted.categorical)} category ids"
            )
        return model


def _inputs_of(graph: "onnx.GraphProto") -> "list[onnx.ValueInfoProto]":
    """Those that are fed: old exporters list initializers among the inputs."""
    given = {one.name for one in graph.initializer}
    return [one for one in graph.input if one.name not in given]

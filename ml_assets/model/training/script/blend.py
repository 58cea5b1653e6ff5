"""Blend: several models of a script, handed in as one whose prediction is their weighted mean.

Here: the blend, and its ONNX graph. Not here: the weights, which the script chooses on its validation rows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch and onnx are typed in part)

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ml_assets.model.training.script.data import Example
from ml_assets.model.training.script.graph import checked_graph, inputs_of, module_graph
from resources.job.errors import BadConfiguration

if TYPE_CHECKING:
    import onnx
    from torch import Tensor, nn

_MATRIX, _PREDICTION = "matrix", "prediction"


@dataclass(frozen=True)
class Blend:
    """Weighted mean of the predictions of `models`, such as trees and a network. `Training.finish` takes it.

    A model is whatever `finish` takes alone. Raises `BadConfiguration` unless each model has a weight, none is negative
    and they add up to 1.
    """

    models: Sequence[object]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "models", tuple(self.models))
            object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        except (TypeError, ValueError) as error:
            raise BadConfiguration(
                f"a blend takes a list of models and a list of numbers as their weights: {error}"
            ) from error
        if not self.models or len(self.models) != len(self.weights):
            raise BadConfiguration(
                f"a blend of {len(self.models)} models has {len(self.weights)} weights: give each model one"
            )
        if min(self.weights) < 0 or not math.isclose(math.fsum(self.weights), 1, abs_tol=1e-6):
            said = ", ".join(f"{weight:g}" for weight in self.weights)
            raise BadConfiguration(
                f"the weights of a blend are {said}: none may be negative, and their sum must be 1"
            )


def blend_graph(blend: Blend, graph_of: Callable[[object], bytes], example: Example) -> bytes:
    """Return the checked graph of the matrix whose answer is the weighted mean. `graph_of` makes a model's graph."""
    import onnx
    from onnx import TensorProto, compose, helper

    used = [(model, weight) for model, weight in zip(blend.models, blend.weights, strict=True) if weight]
    graphs = _of_one_version([onnx.load_model_from_string(graph_of(model)) for model, _ in used])
    classes = [example.classes] if example.classes else []
    nodes: list[Any] = []
    initializers: list[Any] = [
        helper.make_tensor("shape", TensorProto.INT64, [1 + len(classes)], [-1, *classes])
    ]
    parts: list[str] = []
    functions: list[Any] = []
    for i, (graph, weight) in enumerate(zip(graphs, (weight for _, weight in used), strict=True)):
        prefix = f"model {i}/"
        part = compose.add_prefix(graph, prefix=prefix)
        answer, given = part.graph.output[0].name, inputs_of(part.graph)[0].name
        number, row, share, weighted = (
            f"blend {i}/{name}" for name in ("number", "row", "share", "weighted")
        )
        nodes += [
            helper.make_node("Identity", [_MATRIX], [given]),
            *part.graph.node,
            helper.make_node("Cast", [answer], [number], to=TensorProto.FLOAT),
            helper.make_node("Reshape", [number, "shape"], [row]),  # [B, 1] and [B] alike
            helper.make_node("Mul", [row, share], [weighted]),
        ]
        initializers += [
            *part.graph.initializer,
            helper.make_tensor(share, TensorProto.FLOAT, [], [weight]),
        ]
        functions += part.functions
        parts.append(weighted)
    nodes.append(helper.make_node("Sum", parts, [_PREDICTION]))
    whole = helper.make_model(
        helper.make_graph(
            nodes,
            "blend",
            [helper.make_tensor_value_info(_MATRIX, TensorProto.FLOAT, ["rows", example.width])],
            [helper.make_tensor_value_info(_PREDICTION, TensorProto.FLOAT, ["rows", *classes])],
            initializer=initializers,
        ),
        opset_imports=_versions(graphs),
        ir_version=max(graph.ir_version for graph in graphs),
    )
    whole.functions.extend(functions)
    return checked_graph(whole, example)


def matrix_graph(module: "nn.Module", example: Example) -> "onnx.ModelProto":
    """Return the graph from the matrix `[B, F + C]` to the prediction of `module`, which takes numbers and ids."""
    import torch
    from torch import nn

    from ml_assets.model.training.data.preprocess import FullModel
    from ml_assets.model.training.step.objectives import objective_of

    numbers = len(example.inputs.numeric)
    prediction = objective_of(example.objective).predicted

    class OfMatrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = FullModel(example.inputs, module)

        def forward(self, *inputs: "Tensor") -> "Tensor":
            (matrix,) = inputs
            # float32 holds ids exactly up to 2^24.
            return prediction(self.whole(matrix[:, :numbers], matrix[:, numbers:].long()))

    return module_graph(OfMatrix(), {_MATRIX: torch.zeros(2, example.width)})


def _of_one_version(graphs: "list[onnx.ModelProto]") -> "list[onnx.ModelProto]":
    """Return the graphs with one version of ONNX's own operators, the newest among them."""
    from onnx import version_converter

    newest = max(_own_version(graph) for graph in graphs)
    return [
        graph if _own_version(graph) == newest else version_converter.convert_version(graph, newest)
        for graph in graphs
    ]


def _own_version(graph: "onnx.ModelProto") -> int:
    return max(one.version for one in graph.opset_import if not one.domain)


def _versions(graphs: "list[onnx.ModelProto]") -> "list[onnx.OperatorSetIdProto]":
    from onnx import helper

    newest: dict[str, int] = {}
    for graph in graphs:
        for one in graph.opset_import:
            newest[one.domain] = max(newest.get(one.domain, 0), one.version)
    return [helper.make_opsetid(domain, version) for domain, version in newest.items()]

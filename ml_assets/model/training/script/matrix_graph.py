"""Graph of the matrix that a script hands in, checked before it counts; and the graph of a blend.

Here: the one input and the one output that a graph must have, and the weighted mean of several graphs. It imports onnx
and onnxruntime, which a script that hands in a torch module alone does not need. Not here: graphs made of a library's
model (libraries), the export of a torch module (graph).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch, onnx and onnxruntime are typed in part)

from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnx import TensorProto, compose, helper, utils, version_converter
from torch import Tensor, nn

from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.script.blend import Blend
from ml_assets.model.training.script.data import Example
from ml_assets.model.training.script.graph import clear_notes, inputs_of, module_graph, run_graph
from ml_assets.model.training.step.load import refuse_beyond_graph
from ml_assets.model.training.step.objectives import objective_of
from resources.job.errors import BadConfiguration

_OPSET = 13
"""Version of ONNX's own operators for a graph that names none."""
_PROBABILITY = "probability"
"""Name of the output that replaces the pair of label and probabilities."""
_MATRIX, _PREDICTION = "matrix", "prediction"


def checked_graph(content: bytes | onnx.ModelProto, example: Example) -> bytes:
    """Return the graph with one input, the matrix `[B, F + C]` float32, and one output: `[B]` or `[B, 1]`, or
    `[B, classes]` if the label has classes.

    Converters of classifiers output a pair (label, probabilities): the probabilities are kept, of two classes `[B, 2]`
    only column 1. ZipMap's list of dicts is undone. Equal models give equal bytes
    (`clear_notes`). Raises `BadConfiguration` for any other shape, and if the graph fails on the rows of `example`.
    """
    model = _loaded(content)
    width = example.width
    inputs, outputs = inputs_of(model.graph), list(model.graph.output)
    if len(inputs) != 1:
        raise BadConfiguration(
            f"the ONNX graph has inputs {_names(inputs)}: it must have one input, the matrix {example.matrix_words}. "
            "Converters create it from initial_types=[('matrix', FloatTensorType([None, "
            f"{width}]))]"
        )
    taken = inputs[0].type.tensor_type
    columns = taken.shape.dim[-1].dim_value if len(taken.shape.dim) == 2 else -1
    if taken.elem_type != _kind("FLOAT") or columns not in (0, width):  # 0: any number
        raise BadConfiguration(
            f"the input {inputs[0].name!r} of the ONNX graph is {_described(inputs[0])}: it must be the matrix "
            f"{example.matrix_words}"
        )
    _fix_rows(inputs[0])
    if len(outputs) == 2:
        model = _with_probabilities(model, example)
    elif len(outputs) != 1:
        raise _wrong_outputs(outputs, example)
    _require_number(model.graph.output[0], example)
    clear_notes(model)
    graph = model.SerializeToString(deterministic=True)
    _try(graph, example)
    return graph


def _loaded(content: bytes | onnx.ModelProto) -> onnx.ModelProto:
    size = len(content) if isinstance(content, bytes) else content.ByteSize()
    refuse_beyond_graph("the ONNX graph handed in", f"{size:,} bytes", size, "make the model smaller")
    try:
        model = onnx.load_model_from_string(content) if isinstance(content, bytes) else onnx.ModelProto()
        if not isinstance(content, bytes):
            model.CopyFrom(content)
        onnx.checker.check_model(model)
        if not any(one.domain in ("", "ai.onnx") for one in model.opset_import):
            # A graph of trees alone names no such version, but serving adds a Concat in front of it.
            model.opset_import.append(onnx.helper.make_opsetid("", _OPSET))
    except Exception as error:  # protobuf and the checker have their own error types
        raise BadConfiguration(
            f"the model handed in is not a valid ONNX graph: {error}. Give an onnx.ModelProto or its bytes; models of "
            "LightGBM, XGBoost and scikit-learn are handed in as they are"
        ) from error
    return model


def _with_probabilities(model: onnx.ModelProto, example: Example) -> onnx.ModelProto:
    """Return the graph of (label, probabilities) with the probabilities as its only output: of two classes column 1,
    of the label's classes all."""
    label, second = model.graph.output
    is_label = label.type.tensor_type.elem_type in (TensorProto.INT64, TensorProto.INT32, TensorProto.STRING)
    zipped = next((node for node in model.graph.node if second.name in node.output), None)
    if zipped is not None and zipped.op_type == "ZipMap":
        probabilities = zipped.input[0]
    elif second.type.tensor_type.elem_type in _floats():
        probabilities = second.name
    else:
        probabilities = ""
    if not is_label or not probabilities:
        raise _wrong_outputs(model.graph.output, example)
    if not (example.is_probability or example.classes):
        raise BadConfiguration(
            f"the ONNX graph gives a label {label.name!r} and probabilities {second.name!r}, as a classifier does, "
            f"but the objective is {example.objective}: hand in a regressor"
        )
    known = {one.name for one in (*model.graph.output, *model.graph.value_info)}
    if probabilities not in known:
        model.graph.value_info.append(
            helper.make_tensor_value_info(probabilities, TensorProto.FLOAT, ["rows", example.classes or 2])
        )
    core = utils.Extractor(model).extract_model([inputs_of(model.graph)[0].name], [probabilities])
    del core.graph.output[:]
    kind = second.type.tensor_type.elem_type or TensorProto.FLOAT
    if example.classes:
        shape = ["rows", example.classes]
        core.graph.node.append(helper.make_node("Identity", [probabilities], [_PROBABILITY]))
    else:
        shape = ["rows"]
        column = f"{_PROBABILITY}, column"
        core.graph.initializer.append(helper.make_tensor(column, TensorProto.INT64, [], [1]))
        core.graph.node.append(helper.make_node("Gather", [probabilities, column], [_PROBABILITY], axis=1))
    core.graph.output.append(helper.make_tensor_value_info(_PROBABILITY, kind, shape))
    return core


def _require_number(output: onnx.ValueInfoProto, example: Example) -> None:
    kind = output.type.tensor_type.elem_type
    answers_values = not (example.is_probability or example.classes)
    if kind in _floats() or (kind in (TensorProto.INT64, TensorProto.INT32) and answers_values):
        return
    each = f"{example.classes} floats" if example.classes else "one float"
    raise BadConfiguration(
        f"the output {output.name!r} of the ONNX graph is {_described(output)}: it must be {each} a row, "
        f"{example.answer_words}"
    )


def _try(graph: bytes, example: Example) -> None:
    """Run the graph on all rows, and on the first row alone."""
    try:
        answer, alone = (run_graph(graph, matrix) for matrix in (example.matrix, example.matrix[:1]))
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime has many error types of its own
        raise BadConfiguration(
            f"onnxruntime, which serves the model, cannot run the ONNX graph on {example.rows_words}: {error}. Let it "
            f"take any number of rows of the matrix {example.matrix_words} and use operators that onnxruntime knows"
        ) from error
    example.require_answers(answer, alone, "the ONNX graph")


def _fix_rows(taken: onnx.ValueInfoProto) -> None:
    """Name the first dimension: converters leave it empty, or write the number of rows that they saw."""
    taken.type.tensor_type.shape.dim[0].dim_param = "rows"


def _wrong_outputs(outputs: Any, example: Example) -> BadConfiguration:
    said = ", ".join(f"{one.name!r} {_described(one)}" for one in outputs)
    legal = (
        f"one, the probabilities of the {example.classes} classes, or two, a label and these probabilities"
        if example.classes
        else "one, a number for each row (for a classifier the probability of the second class), or two, a label and "
        "the probabilities of two classes"
    )
    return BadConfiguration(f"the ONNX graph has the outputs {said}: it must have {legal}")


def _names(values: list[onnx.ValueInfoProto]) -> list[str]:
    return [one.name for one in values]


def _described(value: onnx.ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return str(kind).removesuffix("_type")
    tensor = value.type.tensor_type
    sizes = (
        one.dim_param or (str(one.dim_value) if one.HasField("dim_value") else "?")
        for one in tensor.shape.dim
    )
    return f"[{', '.join(sizes)}] {TensorProto.DataType.Name(tensor.elem_type).lower()}"


def _kind(name: str) -> int:
    return TensorProto.DataType.Value(name)


def _floats() -> tuple[int, ...]:
    return tuple(map(_kind, ("FLOAT", "DOUBLE", "FLOAT16")))


def blend_graph(
    blend: Blend,
    graph_of: Callable[[object], bytes],
    plain: Callable[[nn.Module], nn.Module],
    example: Example,
) -> bytes:
    """Return the checked graph of the matrix whose answer is the weighted mean. `graph_of` makes a member's graph;
    `plain` checks a member that is a torch module, and returns it without wrappers."""
    used = [(model, weight) for model, weight in zip(blend.models, blend.weights, strict=True) if weight]
    answers = (
        checked_graph(_of_module(plain(model), example), example)
        if isinstance(model, nn.Module)
        else graph_of(model)
        for model, _ in used
    )
    graphs = _of_one_version([onnx.load_model_from_string(graph) for graph in answers])
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


def _of_module(module: nn.Module, example: Example) -> onnx.ModelProto:
    """Return the graph from the matrix `[B, F + C]` to the prediction of `module`, which takes numbers and ids."""
    numbers = len(example.inputs.numeric)
    prediction = objective_of(example.objective).predicted

    class OfMatrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = FullModel(example.inputs, module)

        def forward(self, *inputs: Tensor) -> Tensor:
            (matrix,) = inputs
            # float32 holds ids exactly up to 2^24.
            return prediction(self.whole(matrix[:, :numbers], matrix[:, numbers:].long()))

    return module_graph(OfMatrix(), {_MATRIX: torch.zeros(2, example.width)})


def _of_one_version(graphs: list[onnx.ModelProto]) -> list[onnx.ModelProto]:
    """Return the graphs with one version of ONNX's own operators, the newest among them."""
    newest = max(_own_version(graph) for graph in graphs)
    return [
        graph if _own_version(graph) == newest else version_converter.convert_version(graph, newest)
        for graph in graphs
    ]


def _own_version(graph: onnx.ModelProto) -> int:
    return max(one.version for one in graph.opset_import if not one.domain)


def _versions(graphs: list[onnx.ModelProto]) -> list[onnx.OperatorSetIdProto]:
    newest: dict[str, int] = {}
    for graph in graphs:
        for one in graph.opset_import:
            newest[one.domain] = max(newest.get(one.domain, 0), one.version)
    return [helper.make_opsetid(domain, version) for domain, version in newest.items()]

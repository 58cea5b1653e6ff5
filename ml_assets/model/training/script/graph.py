"""ONNX graphs of a script's models: of one matrix, or of the inputs of a torch module, for any number of rows.

Here: checking such a graph, bringing it into one form, running it; the call of torch's exporter, and mends of what it
writes. Not here: making a graph from a library's model (libraries), the raw columns in front of it
(release.onnx_graph).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (onnx and onnxruntime are typed in part)
# (torch and onnx are typed in part)

import copy
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ml_assets.model.training.script.data import Example
from ml_assets.model.training.step.bundle_limit import refuse_beyond_graph
from resources.job.errors import BadConfiguration

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    import torch
    from torch import Tensor, nn

_OPSET = 13
"""Version of ONNX's own operators for a graph that names none."""
_PROBABILITY = "probability"
"""Name of the output that replaces the pair of label and probabilities."""
_NAME = "graph"
"""Name of each graph, also of those in branches and loops."""
_NOTES = ("doc_string", "metadata_props")
"""Fields for readers alone."""


def checked_graph(content: "bytes | onnx.ModelProto", example: Example) -> bytes:
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


def run_graph(graph: bytes, matrix: NDArray[np.float32]) -> NDArray[Any]:
    """Return the answer of a graph with one input and one output to `matrix`, in the output's shape."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    outputs: Any = session.run(None, {session.get_inputs()[0].name: matrix})
    return np.asarray(outputs[0])


def clear_notes(part: Any) -> None:
    """Remove from a message of ONNX and all its parts what differs between two exports of one model: random names of
    graphs, paths, stack traces and documentation. None of it is computed with."""
    if part.DESCRIPTOR.name == "GraphProto":
        part.name = _NAME  # onnxmltools draws a random one; ONNX forbids an empty one
    for field in part.DESCRIPTOR.fields:
        if field.name in _NOTES:
            part.ClearField(field.name)
        elif field.message_type is not None:
            inside = getattr(part, field.name)
            if not hasattr(inside, "DESCRIPTOR"):
                for one in inside:
                    clear_notes(one)
            elif part.HasField(field.name):
                clear_notes(inside)


def inputs_of(graph: "onnx.GraphProto") -> "list[onnx.ValueInfoProto]":
    """Return the inputs that a caller feeds: old exporters list initializers among the inputs."""
    given = {one.name for one in graph.initializer}
    return [one for one in graph.input if one.name not in given]


def _loaded(content: "bytes | onnx.ModelProto") -> "onnx.ModelProto":
    size = len(content) if isinstance(content, bytes) else content.ByteSize()
    refuse_beyond_graph("the ONNX graph handed in", f"{size:,} bytes", size, "make the model smaller")
    try:
        import onnx
        import onnxruntime as _  # noqa: F401
    except ImportError as error:
        raise BadConfiguration(
            f"{error.name} is not installed where the script runs, but it tests a graph before it is accepted: add "
            "onnx and onnxruntime to the packages of its image (resources.image)"
        ) from error
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


def _with_probabilities(model: "onnx.ModelProto", example: Example) -> "onnx.ModelProto":
    """Return the graph of (label, probabilities) with the probabilities as its only output: of two classes column 1,
    of the label's classes all."""
    from onnx import TensorProto, helper, utils

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


def _require_number(output: "onnx.ValueInfoProto", example: Example) -> None:
    from onnx import TensorProto

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


def _fix_rows(taken: "onnx.ValueInfoProto") -> None:
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


def _names(values: "list[onnx.ValueInfoProto]") -> list[str]:
    return [one.name for one in values]


def _described(value: "onnx.ValueInfoProto") -> str:
    from onnx import TensorProto

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
    from onnx import TensorProto

    return TensorProto.DataType.Value(name)


def _floats() -> tuple[int, ...]:
    return tuple(map(_kind, ("FLOAT", "DOUBLE", "FLOAT16")))


def module_graph(
    module: "nn.Module",
    examples: "Mapping[str, Tensor]",
    outputs: Sequence[str] = ("answer",),
    stored: "Mapping[str, onnx_ir.ExternalTensor] | None" = None,
) -> "onnx.ModelProto":
    """Return the graph of `module` in evaluation mode, whose forward is declared with `*inputs`.

    `examples` names these inputs in order. Each has rows in the first dimension: at least two, as torch takes a single
    row for a constant. `outputs` name what it returns. `stored` has the places of tensors of its `state_dict` that
    are in a file already: the graph refers to these places and does not hold the tensors.
    """
    import torch

    rows = torch.export.Dim("rows")
    with _quiet():
        program = torch.onnx.export(
            frozen(module),
            tuple(examples.values()),
            dynamo=True,
            dynamic_shapes=(tuple({0: rows} for _ in examples),),
            input_names=list(examples),
            output_names=list(outputs),
            verbose=False,
            optimize=False,
        )
        exported = cast("torch.onnx.ONNXProgram", program)  # None only with `dynamo=False`
        _refer_to(stored or {}, exported)
    model = exported.model_proto
    _drop_idle_squeezes(model)
    return model


def frozen(module: "nn.Module") -> "nn.Module":
    """Return a copy of `module` in evaluation mode on the CPU. It shares the parameters that are on the CPU."""
    shared = {id(one): one for one in module.parameters() if one.device.type == "cpu"}
    return copy.deepcopy(module, shared).cpu().eval()


def _refer_to(stored: "Mapping[str, onnx_ir.ExternalTensor]", exported: "torch.onnx.ONNXProgram") -> None:
    """Simplify the graph, and let its initializers of a name in `stored` be these places.

    The simplification sees no values of stored tensors: otherwise it would transpose weights, or fold a batch
    normalization into them, and put the result into the graph. onnxruntime does that when it loads the graph.
    """
    initializers = exported.model.graph.initializers
    found = {name: place for name, place in stored.items() if name in initializers}
    for name, place in found.items():
        value = initializers[name]
        if (value.dtype, value.shape) != (place.dtype, place.shape):
            raise ValueError(
                f"{name} is {value.dtype} {value.shape}, but {place.dtype} {place.shape} in its file"
            )
        value.const_value = None
    exported.optimize()
    for name, place in found.items():
        if name in initializers:
            initializers[name].const_value = place


def _drop_idle_squeezes(model: "onnx.ModelProto") -> None:
    """Replace each Squeeze of a dimension that is not 1, which torch ignores and ONNX refuses.

    A model that squeezes its last dimension has one number a row for a label 0 or 1, and all scores for classes.
    """
    from onnx import numpy_helper

    shapes = {one.name: one.type.tensor_type.shape.dim for one in model.graph.value_info}
    constants = {one.name: one for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Squeeze" and node.input[0] in shapes and node.input[-1] in constants:
            axes = np.atleast_1d(numpy_helper.to_array(constants[node.input[-1]]))
            if any(shapes[node.input[0]][int(axis)].dim_value > 1 for axis in axes):
                node.op_type = "Identity"
                del node.input[1:]


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the exporter's messages about itself, packages that are not installed, and weights without a value."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

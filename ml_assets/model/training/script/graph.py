"""ONNX graphs: export of a torch module, the answer of a graph; and the model of a script, read from its files.

    model.safetensors    its weights by name; for models other than torch, the ONNX graph as one array of bytes
    model.pt2            for torch: the computation, as torch.export writes it

Here: functions that workers, evaluation and export use. They import torch, onnx and onnxruntime when they need them.
Not here: checking the model that a script hands in (script_model, matrix_graph), the graph of a bundle
(release.onnx_graph).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch, onnx and onnxruntime are typed in part)

import copy
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    import torch
    from torch import Tensor, nn

PROGRAM = "model.pt2"
GRAPH = "onnx"
"""Name of the only array if the model is an ONNX graph."""
_NAME = "graph"
"""Name of each graph, also of those in branches and loops."""
_NOTES = ("doc_string", "metadata_props")
"""Fields for readers alone."""


def read_model(weights: Path) -> "nn.Module | bytes":
    """Read the model that a script handed in, from the weights file that a result names.

    Returns a torch module on the CPU that takes raw numbers (NaN where missing) and category ids, or the bytes of an
    ONNX graph of the matrix.
    """
    arrays = load_file(weights)
    if set(arrays) == {GRAPH}:
        return arrays[GRAPH].tobytes()
    import torch

    module = torch.export.load(weights.with_name(PROGRAM)).module()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return module


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

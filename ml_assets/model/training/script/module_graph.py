"""Torch module as an ONNX graph of its inputs, for any number of rows.

Here: the call of torch's exporter, and mends of what it writes. Not here: the raw columns in front of a module
(release.onnx_graph), the matrix in front of it (blend).
"""

# pyright: reportUnknownMemberType=false
# (torch and onnx are typed in part)

import copy
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    import torch
    from torch import Tensor, nn


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

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
    from torch import Tensor, nn


def module_graph(
    module: "nn.Module", examples: "Mapping[str, Tensor]", outputs: Sequence[str] = ("answer",)
) -> "onnx.ModelProto":
    """Return the graph of `module` in evaluation mode, whose forward is declared with `*inputs`.

    `examples` names these inputs in order. Each has rows in the first dimension: at least two, as torch takes a single
    row for a constant. `outputs` name what it returns.
    """
    import torch

    rows = torch.export.Dim("rows")
    with _quiet():
        program = torch.onnx.export(
            copy.deepcopy(module).cpu().eval(),
            tuple(examples.values()),
            dynamo=True,
            dynamic_shapes=(tuple({0: rows} for _ in examples),),
            input_names=list(examples),
            output_names=list(outputs),
            verbose=False,
        )
    model = cast("torch.onnx.ONNXProgram", program).model_proto  # None only with `dynamo=False`
    _drop_idle_squeezes(model)
    return model


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
    """Silence the exporter's messages about itself and about packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

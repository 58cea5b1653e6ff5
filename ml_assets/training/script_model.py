"""The model of a script as files of the job's folder, and back: nothing of the script is needed to read it.

    model.safetensors    its weights by name; for what is not torch, the ONNX graph as one array of bytes
    model.pt2            for torch: the computation, as torch.export writes it

Here: what may be handed in. Not here: turning libraries' models into ONNX (script_trees), serving (release).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch and safetensors are partial)

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ml_assets.snapshots.reader import InputSpec, file_sha256
from ml_assets.training.storage import write_whole
from resources.launcher.errors import BadConfiguration
from resources.launcher.protocol import WEIGHTS

if TYPE_CHECKING:
    import torch
    from torch import nn

PROGRAM = "model.pt2"
_GRAPH = "onnx"
"""Name of the only array where the model is an ONNX graph."""


@dataclass(frozen=True, kw_only=True)
class WrittenModel:
    """What `write_model` left."""

    path: Path
    sha256: str
    files: tuple[str, ...]
    """In the job's folder."""


def write_model(
    model: object, inputs: InputSpec, folder: Path, sample: "torch.Tensor | None" = None
) -> WrittenModel:
    """Write `model`, a torch module or an ONNX graph (an `onnx.ModelProto` or its bytes), into `folder`.

    A torch module takes (numbers `[B, F]` float32, standardised and filled; category ids `[B, C]` int64; samples
    `[B, ...]` where rows have them, like `sample`, `[1, ...]`) and gives `[B]`: logits of a `binary` objective, values
    of a `regression`. It must be one that torch.export can trace. Wrappers of data parallelism and of torch.compile
    are taken off; shards are not put together.

    An ONNX graph has one input, the matrix `[B, F + C]` float32 of `Training.matrix`, and one output, `[B]` or
    `[B, 1]`: probabilities of a `binary` objective, values of a `regression`.

    Raises `BadConfiguration` for anything else.
    """
    from torch import nn

    if isinstance(model, nn.Module):
        return _write_module(model, inputs, folder, sample)
    serialize: Any = getattr(model, "SerializeToString", lambda: model)
    content = serialize()
    if not isinstance(content, bytes):
        raise BadConfiguration(
            f"a {type(model).__name__} cannot be handed in: give a torch module, or an ONNX graph of the matrix. For "
            "scikit-learn's histogram gradient boosting script_trees.trees_to_onnx makes one; for other libraries "
            "skl2onnx and onnxmltools do"
        )
    from safetensors.numpy import save_file

    write_whole(folder / WEIGHTS, lambda to: save_file({_GRAPH: np.frombuffer(content, np.uint8)}, to))
    return WrittenModel(path=folder / WEIGHTS, sha256=file_sha256(folder / WEIGHTS), files=(WEIGHTS,))


def read_model(weights: Path) -> "nn.Module | bytes":
    """What was handed in, from the file that a result names: a torch module on the CPU that takes raw numbers (NaN
    where missing) and category ids, or the bytes of an ONNX graph of the matrix."""
    from safetensors.numpy import load_file

    arrays = load_file(weights)
    if set(arrays) == {_GRAPH}:
        return arrays[_GRAPH].tobytes()
    import torch

    module = torch.export.load(weights.with_name(PROGRAM)).module()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return module


def _write_module(
    model: "nn.Module", inputs: InputSpec, folder: Path, sample: "torch.Tensor | None"
) -> WrittenModel:
    import torch
    from safetensors.torch import save_file
    from torch.distributed.tensor import DTensor

    from ml_assets.training.preprocess import FullModel

    core = _unwrapped(model)
    if any(isinstance(value, DTensor) for value in core.state_dict().values()):
        raise BadConfiguration(
            "the weights are in shards: gather them (torch.distributed.checkpoint.state_dict.get_model_state_dict "
            "with full_state_dict), load them into a plain module and hand that in"
        )
    whole = FullModel(inputs, copy.deepcopy(core).cpu()).eval()
    rows = torch.export.Dim("rows")
    example = (
        torch.zeros(2, len(inputs.numeric)),
        torch.zeros(2, len(inputs.categorical), dtype=torch.int64),
        *(() if sample is None else (torch.cat([sample, sample]),)),
    )
    try:
        with torch.no_grad():
            answer = whole(*example)
            program = torch.export.export(whole, example, dynamic_shapes=tuple({0: rows} for _ in example))
    except Exception as error:  # torch has no one type for what it cannot trace
        raise BadConfiguration(
            f"the module handed in cannot be served apart from the script: {error}. It is called with numbers "
            f"[rows, {len(inputs.numeric)}] and category ids [rows, {len(inputs.categorical)}]"
            + (f" and samples [rows, {', '.join(map(str, sample.shape[1:]))}]" if sample is not None else "")
            + "; let its forward be tensor operations alone, the same for any number of rows"
        ) from error
    if answer.shape != (2,):
        raise BadConfiguration(
            f"the module handed in gave an output of shape {tuple(answer.shape)} for 2 rows: it must be (2,), one "
            "number a row; squeeze the last dimension"
        )
    weights = {name: value.detach().clone().contiguous() for name, value in program.state_dict.items()}
    write_whole(folder / PROGRAM, lambda to: torch.export.save(program, to))
    write_whole(folder / WEIGHTS, lambda to: save_file(weights, to))
    return WrittenModel(path=folder / WEIGHTS, sha256=file_sha256(folder / WEIGHTS), files=(WEIGHTS, PROGRAM))


def _unwrapped(model: "nn.Module") -> "nn.Module":
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    inner: Any = model
    while True:
        if isinstance(inner, DistributedDataParallel | nn.DataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):  # torch.compile
            inner = inner._orig_mod
        else:
            return inner

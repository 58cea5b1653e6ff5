"""Model of a script as files in the job's folder, which can be read without the script's code.

    model.safetensors    its weights by name; for models other than torch, the ONNX graph as one array of bytes
    model.pt2            for torch: the computation, as torch.export writes it

Here: the kinds of models that a script may hand in, and the check of a model before it counts. Not here: the rows of
that check (data), models and graphs of libraries (libraries, graph), serving (release).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch and safetensors are partial)

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.model.training.script.blend import Blend, blend_graph, matrix_graph
from ml_assets.model.training.script.data import Example
from ml_assets.model.training.script.graph import checked_graph
from ml_assets.model.training.script.libraries import library_graph, library_of
from ml_assets.model.training.step.bundle_limit import refuse_beyond_graph, refuse_large_constants
from resources.files import write_whole
from resources.job.errors import BadConfiguration
from resources.job.events import WEIGHTS

if TYPE_CHECKING:
    import onnx
    import torch
    from torch import nn

PROGRAM = "model.pt2"
_GRAPH = "onnx"
"""Name of the only array if the model is an ONNX graph."""


@dataclass(frozen=True, kw_only=True)
class WrittenModel:
    """Files that `write_model` left in the job's folder."""

    path: Path
    sha256: str
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckedModel:
    """Model that a script handed in, after it answered rows of the snapshot correctly."""

    weights: "dict[str, torch.Tensor]"
    """Arrays by name; for models other than torch, the ONNX graph as the only array."""
    program: "torch.export.ExportedProgram | None"
    """The computation of a torch module; None for an ONNX graph."""


def check_model(model: object, example: Example) -> CheckedModel:
    """Try `model` on the rows of `example`.

    A torch module takes numbers `[B, F]` float32 (standardised and filled), category ids `[B, C]` int64, and blobs
    `[B, ...]` if rows have them. It returns `[B]`: logits for `binary`, values for `regression`, logarithms of expected
    counts for `count`; or `[B, classes]` scores for `multiclass`. torch.export must be able to trace it. Wrappers of
    data parallelism and of torch.compile are removed; shards are refused.

    A model of LightGBM, XGBoost or scikit-learn must be fitted on the matrix `[B, F + C]` float32 of `Training.matrix`.
    An ONNX graph (an `onnx.ModelProto` or its bytes) has that matrix as its only input. Its output is `[B]` or `[B,
    1]`: probabilities for `binary`, values for `regression`, expected counts for `count`; or `[B, classes]`
    probabilities for `multiclass`. A label with the probabilities of two, or of these classes is also accepted.

    A `Blend` of these answers the weighted mean of their predictions. A torch module's prediction counts there, such as
    the sigmoid of its logit. Rows may not have blobs.

    Raises `BadConfiguration` for any other type, for answers that are not finite or not one per row or class, and for a
    graph, blend, or buffers with `persistent=False` of more than 2 GiB.
    """
    import torch
    from torch import nn

    if isinstance(model, nn.Module):
        return _checked_module(model, example)
    graph = _matrix_graph_of(model, example)
    return CheckedModel(weights={_GRAPH: torch.frombuffer(bytearray(graph), dtype=torch.uint8)}, program=None)


def _matrix_graph_of(model: object, example: Example) -> bytes:
    """Return the checked graph of the matrix for any model but a torch module alone."""
    if isinstance(model, Blend):
        if example.blobs is not None:
            raise BadConfiguration(
                "a blend reads the matrix of numbers and categories, and these rows have blobs: hand in one module"
            )
        return blend_graph(model, lambda one: _member_graph(one, example), example)
    library = library_of(model)
    if library is not None:
        return library_graph(model, library, example)
    if isinstance(model, bytes) or hasattr(model, "SerializeToString"):
        return checked_graph(cast("bytes | onnx.ModelProto", model), example)
    raise BadConfiguration(
        f"a {type(model).__name__} cannot be handed in: give a torch module, a model of LightGBM, XGBoost or "
        "scikit-learn, an ONNX graph of the matrix, or a Blend of these"
    )


def _member_graph(model: object, example: Example) -> bytes:
    """Return the checked graph of a blend's member, a torch module included."""
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not isinstance(model, nn.Module):
        return _matrix_graph_of(model, example)
    # Not `state_dict`, which lists a shared tensor twice. Lazy parameters have no size yet.
    numbers = [one for one in (*model.parameters(), *model.buffers()) if not is_lazy(one)]
    refuse_beyond_graph(
        "a module of the blend",
        f"{sum(one.numel() for one in numbers):,} numbers",
        sum(one.nbytes for one in numbers),
        "hand it in alone, as the weights of a blend are in the graph",
    )
    _checked_module(model, example)
    return checked_graph(matrix_graph(_unwrapped(model), example), example)


def write_model(model: CheckedModel, folder: Path) -> WrittenModel:
    """Write a model into `folder`; equal models give equal weight files."""
    import torch
    from safetensors.torch import save_file

    files = (WEIGHTS,)
    if (program := model.program) is not None:
        write_whole(folder / PROGRAM, lambda to: torch.export.save(program, to))
        files = (WEIGHTS, PROGRAM)
    write_whole(folder / WEIGHTS, lambda to: save_file(model.weights, to))
    return WrittenModel(path=folder / WEIGHTS, sha256=file_sha256(folder / WEIGHTS), files=files)


def read_model(weights: Path) -> "nn.Module | bytes":
    """Read the model that a script handed in, from the weights file that a result names.

    Returns a torch module on the CPU that takes raw numbers (NaN where missing) and category ids, or the bytes of an
    ONNX graph of the matrix.
    """
    from safetensors.numpy import load_file

    arrays = load_file(weights)
    if set(arrays) == {_GRAPH}:
        return arrays[_GRAPH].tobytes()
    import torch

    module = torch.export.load(weights.with_name(PROGRAM)).module()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return module


def _checked_module(model: "nn.Module", example: Example) -> CheckedModel:
    import torch
    from torch.distributed.tensor import DTensor

    from ml_assets.model.training.data.preprocess import FullModel
    from ml_assets.model.training.step.memory import is_out_of_memory

    core = _unwrapped(model)
    if any(isinstance(value, DTensor) for value in core.state_dict().values()):
        raise BadConfiguration(
            "the weights are in shards: gather them (torch.distributed.checkpoint.state_dict.get_model_state_dict "
            "with full_state_dict), load them into a plain module and hand that in"
        )
    refuse_large_constants("the module handed in", core)
    inputs, blobs = example.inputs, example.blobs
    given = (
        torch.from_numpy(example.numeric),
        torch.from_numpy(example.category),
        *(() if blobs is None else (blobs,)),
    )
    rows = torch.export.Dim("rows")
    # The trace keeps the rows it was made with, so trace with zeros instead of real rows.
    nothing = tuple(torch.zeros_like(one[:2]) for one in given)
    try:
        whole = FullModel(inputs, copy.deepcopy(core).cpu()).eval()
        with torch.no_grad():
            answer = whole(*given)
            program = torch.export.export(whole, nothing, dynamic_shapes=tuple({0: rows} for _ in given))
            traced = program.module()
            again, alone = traced(*given), traced(*(one[:1] for one in given))
    except Exception as error:  # torch has no single error type for code that it cannot trace
        if is_out_of_memory(error):
            raise
        raise BadConfiguration(
            f"the module handed in cannot be served apart from the script: {error}. It is called with numbers "
            f"[rows, {len(inputs.numeric)}] and category ids [rows, {len(inputs.categorical)}]"
            + (f" and blobs [rows, {', '.join(map(str, blobs.shape[1:]))}]" if blobs is not None else "")
            + "; let its forward be tensor operations alone, the same for any number of rows"
        ) from error
    rows = len(example.numeric)
    legal = (rows, example.classes) if example.classes else (rows,)
    if not isinstance(answer, torch.Tensor) or tuple(answer.shape) != legal:
        said = f"shape {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else type(answer).__name__
        remedy = (
            f"a score for each class of the label: {example.classes_words}"
            if example.classes
            else "one number a row; squeeze the last dimension"
        )
        raise BadConfiguration(
            f"the module handed in gave an output of {said} for {rows} rows: it must be a tensor {legal}, {remedy}"
        )
    expected, found, one = (value.detach().double().numpy() for value in (answer, again, alone))
    example.require_answers(expected, one, "the module handed in", is_prediction=False)
    example.require_same(
        expected,
        found,
        "the served trace of the module",
        "the module itself",
        "let its forward be tensor operations alone, the same at every call (no random numbers, no state)",
    )
    weights = {name: value.detach().clone().contiguous() for name, value in program.state_dict.items()}
    return CheckedModel(weights=weights, program=program)


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

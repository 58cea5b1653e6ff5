"""Model that a script hands in: checked before it counts, then written into the job's folder.

Here: the kinds of models that a script may hand in, the check of a torch module, and the files. Not here: the rows of
the check (data), graphs and models of libraries (matrix_graph, libraries), reading the files (graph).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch and safetensors are partial)

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.script.blend import Blend
from ml_assets.model.training.script.data import Example
from ml_assets.model.training.script.graph import GRAPH, PROGRAM
from ml_assets.model.training.step.load import refuse_beyond_graph, refuse_large_constants
from ml_assets.model.training.step.memory import is_out_of_memory
from resources.files import write_whole
from resources.job.errors import BadConfiguration
from resources.job.events import WEIGHTS

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, kw_only=True)
class WrittenModel:
    """Files that `write_model` left in the job's folder."""

    path: Path
    sha256: str
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckedModel:
    """Model that a script handed in, after it answered rows of the snapshot correctly."""

    weights: dict[str, torch.Tensor]
    """Arrays by name; for models other than torch, the ONNX graph as the only array."""
    program: torch.export.ExportedProgram | None
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
    if isinstance(model, nn.Module):
        return _checked_module(model, example)
    graph = _matrix_graph_of(model, example)
    return CheckedModel(weights={GRAPH: torch.frombuffer(bytearray(graph), dtype=torch.uint8)}, program=None)


def _matrix_graph_of(model: object, example: Example) -> bytes:
    """Return the checked graph of the matrix for any model but a torch module alone."""
    try:  # onnx and onnxruntime, which a torch module does not need
        from ml_assets.model.training.script import libraries, matrix_graph
    except ImportError as error:
        raise BadConfiguration(
            f"{error.name} is not installed where the script runs, but it tests a graph before it is accepted: add "
            "onnx and onnxruntime to the packages of its image (resources.image)"
        ) from error

    if isinstance(model, Blend):
        if example.blobs is not None:
            raise BadConfiguration(
                "a blend reads the matrix of numbers and categories, and these rows have blobs: hand in one module"
            )
        return matrix_graph.blend_graph(
            model, lambda one: _matrix_graph_of(one, example), lambda one: _member(one, example), example
        )
    library = libraries.library_of(model)
    if library is not None:
        return libraries.library_graph(model, library, example)
    if isinstance(model, bytes) or hasattr(model, "SerializeToString"):
        return matrix_graph.checked_graph(cast("bytes | onnx.ModelProto", model), example)
    raise BadConfiguration(
        f"a {type(model).__name__} cannot be handed in: give a torch module, a model of LightGBM, XGBoost or "
        "scikit-learn, an ONNX graph of the matrix, or a Blend of these"
    )


def _member(module: nn.Module, example: Example) -> nn.Module:
    """Check a torch module that is a blend's member; return it without wrappers."""
    # Not `state_dict`, which lists a shared tensor twice. Lazy parameters have no size yet.
    numbers = [one for one in (*module.parameters(), *module.buffers()) if not is_lazy(one)]
    refuse_beyond_graph(
        "a module of the blend",
        f"{sum(one.numel() for one in numbers):,} numbers",
        sum(one.nbytes for one in numbers),
        "hand it in alone, as the weights of a blend are in the graph",
    )
    _checked_module(module, example)
    return _unwrapped(module)


def write_model(model: CheckedModel, folder: Path) -> WrittenModel:
    """Write a model into `folder`; equal models give equal weight files."""
    files = (WEIGHTS,)
    if (program := model.program) is not None:
        write_whole(folder / PROGRAM, lambda to: torch.export.save(program, to))
        files = (WEIGHTS, PROGRAM)
    write_whole(folder / WEIGHTS, lambda to: save_file(model.weights, to))
    return WrittenModel(path=folder / WEIGHTS, sha256=file_sha256(folder / WEIGHTS), files=files)


def _checked_module(model: nn.Module, example: Example) -> CheckedModel:
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


def _unwrapped(model: nn.Module) -> nn.Module:
    inner: Any = model
    while True:
        if isinstance(inner, DistributedDataParallel | nn.DataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):  # torch.compile
            inner = inner._orig_mod
        else:
            return inner

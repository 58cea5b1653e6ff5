"""Torch module of a job: built from its configuration, loaded with trained weights, and used for predictions.

Workers, evaluation and export all use this, so that each builds the same model. Here too: errors of the pipeline's own
functions before the first step, which would repeat in each attempt, and the patterns in the plans of a model, like
`layers.*.up`; and the limit of the graph in a bundle. Not here: training the model, exit codes of errors during
training (attempt.exit_code).
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)
# (the annotations of torch and safetensors are partial)

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn
from torch.nn.parameter import is_lazy

from ml_assets.data.snapshots.split_reader import InputSpec, Rows
from ml_assets.foundation.objective_facts import LARGEST_LEVEL, LARGEST_SPREAD, LEAST_SPREAD, facts_of
from ml_assets.model.training.attempt.exit_code import TRANSIENT
from ml_assets.model.training.data.batches import Batch, function_named
from ml_assets.model.training.data.preprocess import UNKNOWN, FullModel
from ml_assets.model.training.process.group import is_lost_peer
from ml_assets.model.training.step.memory import is_out_of_memory
from ml_assets.model.training.step.objectives import objective_of
from resources.job.errors import BadConfiguration
from resources.job.job import TrainingJob


@contextmanager
def refusing(sentence: Callable[[Exception], str]) -> Generator[None]:
    """Raise `BadConfiguration` with `sentence` of an error inside the block, unless another attempt may succeed.

    A retry may help after errors of files, networks, memory, devices and lost workers. A model's `AssertionError` was
    tried three times.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TRANSIENT) or is_out_of_memory(error) or is_lost_peer(error):
            raise
        raise BadConfiguration(sentence(error)) from error


def matching(core: nn.Module, pattern: str, plan: str) -> list[tuple[str, nn.Module]]:
    """Return name and module of each part of `core` that matches `pattern`, in order. Raises `BadConfiguration`, which
    names the `plan`, if none matches."""
    wanted = pattern.split(".")
    found = [
        (name, module)
        for name, module in core.named_modules()
        if len(parts := name.split(".")) == len(wanted) and all(map(fnmatchcase, parts, wanted))
    ]
    if not found:
        raise BadConfiguration(
            f"{plan} of {type(core).__name__} names {pattern!r}, but the model has no such part"
        )
    return found


def build_model(job: TrainingJob, inputs: InputSpec) -> FullModel:
    """Return the untrained model. Its first weights depend only on the job's seed, if drawn from torch, numpy or
    random. The unknown category begins as the mean of the others where the model's `category_plan` names its table.

    Raises `BadConfiguration` if the model function cannot be imported, refuses its hyperparameters, or does not return
    a model that maps `[B, F]` float32 and `[B, C]` int64 to `[B]`, or to `[B, classes]`. If rows have blobs,
    `check_output` checks the mapping instead, since it takes a batch with blobs.
    """
    _refuse_unit_of_label(job, inputs)
    function = function_named(job.model_function, "model function")
    with refusing(lambda error: _why_refused(job, error)):
        core = _seeded(job, inputs, function)
    if not isinstance(core, nn.Module):
        raise BadConfiguration(f"{job.model_function} returned {type(core).__name__}, not a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in core.parameters()):
        raise BadConfiguration(f"the model of {job.model_function} has no parameters to train")
    _refuse_lazy(job, core)
    _refuse_other_unit(job, core)
    if hasattr(core, "error_power"):
        core.error_power = facts_of(job.objective).error_power  # pyright: ignore[reportArgumentType]
    refuse_large_constants(f"the model of {job.model_function}", core)
    _begin_unknown_at_mean(core, inputs)
    model = FullModel(inputs, core)
    if not inputs.blob:
        rows = 2  # not 1, which a batch norm refuses and a squeeze hides
        numeric, category = torch.zeros(rows, len(inputs.numeric)), torch.zeros(rows, len(inputs.categorical))
        nothing = Batch(
            numeric=numeric, category=category.long(), label=torch.zeros(rows), row=np.arange(rows)
        )
        check_output(job, model, nothing, inputs.outputs)
    return model


def refuse_chance(job: TrainingJob, inputs: InputSpec) -> None:
    """Raise `BadConfiguration` if the model function draws other first weights when it is called again."""
    function = function_named(job.model_function, "model function")
    one, other = (_seeded(job, inputs, function).state_dict() for _ in range(2))
    for name, value in one.items():
        if not torch.equal(value.nan_to_num(), other[name].nan_to_num()):
            raise BadConfiguration(
                f"{job.model_function} draws {name} anew whenever it is called, from a generator that the platform "
                "does not seed: determinism bitwise cannot hold. Draw from torch, numpy.random or random, or use "
                "determinism tolerance"
            )


def _seeded(job: TrainingJob, inputs: InputSpec, function: Callable[..., Any]) -> Any:
    torch.manual_seed(job.seed)
    np.random.seed(job.seed % 2**32)
    random.seed(job.seed)
    return function(inputs, **job.hyperparameters)


def _why_refused(job: TrainingJob, error: Exception) -> str:
    if isinstance(error, TypeError | ValueError):
        return f"{job.model_function} refuses hyperparameters {job.hyperparameters}: {error}"
    return f"{job.model_function} failed with {type(error).__name__}: {error}"


def _refuse_lazy(job: TrainingJob, core: nn.Module) -> None:
    for name, value in (*core.named_parameters(), *core.named_buffers()):
        if nn.parameter.is_lazy(value):
            raise BadConfiguration(
                f"{name} of {job.model_function} has no shape before the first pass: replace the lazy layer by one "
                "with a number of inputs (len(inputs.numeric), or the width before it)"
            )


def _refuse_unit_of_label(job: TrainingJob, inputs: InputSpec) -> None:
    """Raise `BadConfiguration` if float32 does not hold squared errors in the unit of the label, or their digits."""
    is_number = facts_of(job.objective).labels == "numbers"
    if is_number and not LEAST_SPREAD <= inputs.spread <= LARGEST_SPREAD:
        raise BadConfiguration(
            f"labels of the training rows differ by about {inputs.spread:.0e}, and float32 does not hold the squares "
            "of such errors: let the feature function return the label in another unit"
        )
    if is_number and abs(inputs.level) > LARGEST_LEVEL * inputs.spread:
        raise BadConfiguration(
            f"labels of the training rows differ by about {inputs.spread:.0e} around {inputs.level:.3g}, and float32 "
            "has seven digits: let the feature function subtract a constant"
        )


def _refuse_other_unit(job: TrainingJob, core: nn.Module) -> None:
    """Raise `BadConfiguration` if the model answers in the unit of the label, and outputs of the objective do not."""
    if getattr(core, "in_unit_of_label", False) and facts_of(job.objective).labels != "numbers":
        raise BadConfiguration(
            f"{job.model_function} answers in the unit of the label, as it adds earlier labels (`past`), and outputs "
            f"of the objective {job.objective} have another one: leave `past` out of the hyperparameters, or choose "
            "the objective regression or a quantile"
        )


def load_model(job: TrainingJob, inputs: InputSpec, weights: Path) -> FullModel:
    """Return the trained model on the CPU, in evaluation mode, from a `model.safetensors` of this job."""
    model = build_model(job, inputs)
    model.load_state_dict(load_file(weights))
    return model.eval()


def predict(model: FullModel, objective: str, rows: Rows, batch: int = 65536) -> NDArray[np.float64]:
    """Return the prediction of each row, float64, on the CPU: a probability or value `[rows]`, or a probability for
    each class `[rows, classes]`. Not for rows with blobs."""
    prediction = objective_of(objective).predicted
    parts: list[NDArray[np.float64]] = []
    with torch.inference_mode():
        for at in range(0, len(rows), batch):
            # Copies: torch warns about views of a read-only mapping, and must not write to them.
            numeric = torch.from_numpy(rows.numeric[at : at + batch].copy())
            category = torch.from_numpy(rows.category[at : at + batch].astype(np.int64))
            parts.append(prediction(model(numeric, category).double()).numpy())
    return np.concatenate(parts) if parts else np.empty(0)


def _begin_unknown_at_mean(core: nn.Module, inputs: InputSpec) -> None:
    """Set the unknown id of each embedding in the model's `category_plan` to the mean of its other ids.

        category_plan = ("embeddings.*",)

    has patterns of the `nn.Embedding`s of the categorical columns, in the order of the columns. Without a plan nothing
    is set: the size of a table does not tell what its rows are.
    """
    plan = getattr(core, "category_plan", ())
    if not plan or not inputs.categorical:
        return
    if not isinstance(plan, tuple | list):
        raise BadConfiguration(
            f'category_plan of {type(core).__name__} is {plan!r}: make it a tuple of patterns, ("embeddings.*",)'
        )
    tables = [found for pattern in plan for found in matching(core, str(pattern), "category_plan")]
    found = [f"{name} ({_ids(module)})" for name, module in tables]
    wanted = [
        f"{name} ({size} ids)" for name, size in zip(inputs.categorical, inputs.cardinalities, strict=True)
    ]
    if tuple(_ids(module) for _, module in tables) != tuple(f"{size} ids" for size in inputs.cardinalities):
        raise BadConfiguration(
            f"category_plan of {type(core).__name__} names {', '.join(found)}, and the categorical columns are "
            f"{', '.join(wanted)}: name one nn.Embedding for each column, in this order"
        )
    for _, module in tables:
        if isinstance(module, nn.Embedding) and module.padding_idx != UNKNOWN:
            others = module.weight.detach()[UNKNOWN + 1 :]
            if len(others):
                with torch.no_grad():
                    module.weight[UNKNOWN] = others.mean(dim=0)


def _ids(module: nn.Module) -> str:
    return f"{module.num_embeddings} ids" if isinstance(module, nn.Embedding) else type(module).__name__


def check_output(job: TrainingJob, model: FullModel, batch: Batch, outputs: int = 1) -> None:
    """Raise `BadConfiguration` if `model` cannot be called with `batch` (at least two rows, on its device), or returns
    an output that the objective does not accept. `outputs` is the number of classes, if the label has classes."""
    model.eval()
    try:
        with (
            refusing(
                lambda error: (
                    f"{job.model_function} does not take the columns of the snapshot: "
                    + (str(error) or type(error).__name__)
                )
            ),
            torch.no_grad(),
        ):
            output = model(*batch.inputs)
        objective = objective_of(job.objective)
        try:
            objective.check(output, batch, outputs)
        except ValueError as error:
            raise BadConfiguration(f"{job.model_function} {error}") from error
        if objective.reads_blob and _looks_ahead(model, batch):
            raise BadConfiguration(
                f"{job.model_function} looks ahead: the score of a token changes with the tokens after it, so the "
                "model would learn to copy them. Use causal attention (is_causal=True), and pad convolutions in front"
            )
    finally:
        model.train()


_HIDES = 1e-2
"""Parameters with no larger magnitude may hide what a branch reads."""


@torch.no_grad()
def _looks_ahead(model: FullModel, batch: Batch) -> bool:
    """Return True if another last token changes scores before it.

    The last weights of a residual branch often begin at 0, and its gate (LayerScale) at 1e-5, which hides what the
    branch reads until later steps. So parameters of values below 1e-2 have larger random ones meanwhile.
    """
    if batch.blob is None:
        return False
    tokens = batch.blob.clone()
    tokens[:, -1] = torch.where(tokens[:, -1] == 0, 1, 0)
    draw = torch.Generator().manual_seed(0)
    small = [one for one in model.parameters() if one.numel() and one.abs().max() < _HIDES]
    before = [one.clone() for one in small]
    try:
        for parameter in small:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
        output, other = model(*batch.inputs), model(*replace(batch, blob=tokens).inputs)
    finally:
        for parameter, values in zip(small, before, strict=True):
            parameter.copy_(values)
    return not torch.allclose(output[:, :-1], other[:, :-1], rtol=1e-3, atol=1e-4, equal_nan=True)


_PROTOBUF_BYTES = 2**31 - 1
"""Largest size of a protobuf message, in bytes, and so of the graph in a bundle. Weights of a torch module are in
another file (release.onnx_graph) and have no limit. Inside the graph are graphs and blends that scripts hand in, and
buffers with `persistent=False`."""


def refuse_beyond_graph(who: str, arithmetic: str, size: int, remedy: str) -> None:
    """Raise `BadConfiguration` if `size` bytes do not fit into the graph of a bundle.

    In the message, `who` begins the sentence and `arithmetic` shows how the size was computed.
    """
    if size > _PROTOBUF_BYTES:
        raise BadConfiguration(
            f"{who} has {arithmetic} = {size / 2**30:.1f} GiB, and the graph of a bundle holds 2 GiB, which is "
            f"protobuf's limit: {remedy}"
        )


def refuse_large_constants(who: str, module: nn.Module) -> None:
    """Raise `BadConfiguration` if buffers of `module` that its `state_dict` leaves out do not fit into the graph."""
    stored = module.state_dict().keys()
    left_out = [one for name, one in module.named_buffers() if name not in stored and not is_lazy(one)]
    refuse_beyond_graph(
        who,
        f"{len(left_out)} buffers with persistent=False of {sum(one.numel() for one in left_out):,} numbers",
        sum(one.nbytes for one in left_out),
        "register them with persistent=True, which stores them with the weights",
    )

"""Preflight: passes forward and backward before the first step. It refuses at once a model that can never train.

With `determinism: bitwise` a pass is repeated, in training and in validation. It must change nothing and give the
same numbers each time, also if the model cannot see its rank. Otherwise the result would depend on how often a worker
calls the model, and so on the number of workers. The preflight always takes two steps and restores the first weights:
the model must then be as it was before. Otherwise it keeps state that no checkpoint holds. The preflight observes
effects; it has no list of layers. Not here: the first weights (load), their equality on all ranks (model_digests).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (the annotations of torch are partial, and only a module's private dictionaries show the tensor behind a name)

import hashlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import distributed, nn

from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import RowOrder, ShardSlice, fewest_of_contiguous
from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.step.load import refusing
from ml_assets.model.training.step.memory import passes, rows_at_once
from ml_assets.model.training.step.model_digests import digest_of, plain_digests, tensor_digests
from ml_assets.model.training.step.objectives import Objective
from ml_assets.model.training.step.precision import computing
from ml_assets.model.training.telemetry.event_log import emit
from resources.job.errors import BadConfiguration
from resources.job.job import TrainingJob
from resources.words import name_some

ROWS = 64
"""Rows of a pass, if a step has as many: a parameter that only some rows use is then likely to be used."""
_SENT = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
    }
)
"""dtypes that ranks can exchange over both gloo and NCCL."""
_OF_A_RANK = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
)
"""Variables that torch's agent sets for each rank."""
_STEPS = 2
"""Steps before the preflight restores the first weights. After one, a moving average that begins at the first weights
would be the same as after a resume."""
_MOVE = 1e-3
"""Change of each weight in such a step: visible in float32, harmless to the model."""

_NOISE = 1e-4
"""Difference of equal computations on a GPU without `bitwise`, as a share of the largest number."""

_MIXED = 0.05
"""Accepted difference of the outputs for a row alone and among others, as a share of the largest output: half
precision rounds otherwise for another number of rows."""

_REMEDY = (
    "keep it in a persistent buffer (register_buffer), or set training.average for an average of the weights"
)
_OUTPUT = "the output (validation)"
"""Name of a model's answer among the numbers of `_examine_memory`."""

_Numbers: TypeAlias = dict[str, torch.Tensor | None]
_Compute: TypeAlias = Callable[[Batch], _Numbers]
"""Pass over some rows → its gradients or outputs, by name."""


def preflight(
    job: TrainingJob,
    model: FullModel,
    objective: Objective,
    order: RowOrder,
    validation: SplitReader,
    group: Group,
) -> int:
    """Raise `BadConfiguration` if `model` can never train as `job` requires. Each rank calls it by itself.

    All passes, also those in training mode, take rows of `validation`. Afterwards the model is unchanged and has
    no gradients. If a rank keeps only a part of the model, only dtypes are checked: the whole model might not fit.

    Returns a digest of the gradients and outputs under `bitwise`, below 2^63: each process of the training must compute
    the same. 0 if not `bitwise`.
    """
    is_bitwise = job.settings.determinism == "bitwise"
    _refuse_types(model, is_bitwise=is_bitwise)
    if not job.settings.parallel.has_replicas:
        return 0
    units = max(min(fewest_rows(job, order, group.world_size), ROWS), 1)
    with leaving_no_trace(model):
        batch = some_rows(validation, units)
        if is_bitwise and job.decode:
            _refuse_random_decoding(job, validation, batch, units)
        _refuse_gradients(_pass(job, model, objective, batch, group), is_bitwise=is_bitwise)
        _validated(job, model, some_rows(validation, _fewest_validated(job, order, validation, group)), group)
        several = max(2, min(rows_at_once(job.settings, group.world_size), ROWS))
        _refuse_mixed_rows(job, model, some_rows(validation, several), group)
        computes: dict[str, _Compute] = {
            "training": lambda rows: _pass(job, model, objective, rows, group),
            "validation": lambda rows: _validated(job, model, rows, group),
        }
        if is_bitwise:
            other = some_rows(validation, units, first=units // 2 + 1)
            for what, compute in computes.items():
                _refuse_state(job, model, what, compute, batch, other)
        digest = _examine_memory(job, model, computes, batch, is_warned=group.is_first)
        return digest if is_bitwise else 0


@contextmanager
def leaving_no_trace(model: nn.Module) -> Generator[None]:
    """Restore the buffers of `model` and drop its gradients after the block, whose passes do not count."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])


def fewest_rows(job: TrainingJob, order: RowOrder, world_size: int) -> int:
    """Return a lower bound for the rows (lists, where rows form lists) of a worker's smallest pass in any step."""
    of_batch = order.units // order.steps_per_epoch
    of_lane = of_batch // order.lanes
    if job.settings.determinism == "bitwise":
        return of_lane
    return of_lane * (order.lanes // world_size) // passes(job.settings, world_size)


def _fewest_validated(job: TrainingJob, order: RowOrder, validation: SplitReader, group: Group) -> int:
    """Return the rows of the smallest pass of a validation, at most `ROWS`."""
    at_once = rows_at_once(job.settings, group.world_size)
    return min(fewest_of_contiguous(validation.shard_units, order.lanes, at_once), ROWS)


def some_rows(reader: SplitReader, units: int, *, first: int = 0) -> Batch:
    """Return `units` rows, or lists, of `reader` from number `first` on, repeated if its first shard has fewer."""
    few = np.arange(first, first + units, dtype=np.int64) % reader.shard_units[0]
    return reader.take([ShardSlice(0, few)])


def _refuse_random_decoding(job: TrainingJob, validation: SplitReader, batch: Batch, units: int) -> None:
    """Raise `BadConfiguration` if the rows of `batch`, the first `units`, decode to other values the second time.

    Small batches are decoded several times: a flip with probability 1/2 leaves a single row unchanged in every second
    try.
    """
    for _ in range(-(-ROWS // len(batch))):
        with _as_any_rank():
            again = some_rows(validation, units)
        if not all(map(_equal, batch.inputs, again.inputs)):
            raise BadConfiguration(
                f"{job.decode} gave two results for the same bytes: it draws random numbers, or reads something "
                "other than the bytes, so that determinism bitwise cannot hold. Put crops, flips and noise into the "
                "model's forward, whose random numbers can be repeated, or use determinism tolerance"
            )


def _pass(job: TrainingJob, model: FullModel, objective: Objective, batch: Batch, group: Group) -> _Numbers:
    """Return the gradient of each trainable parameter after a pass in training mode."""
    model.zero_grad(set_to_none=True)
    group.seed(job.seed)
    with refusing(lambda error: _why_failed(job, "training", len(batch), error)):
        with computing(job.settings.precision, group.device):
            output = model(*batch.inputs)
        objective.loss(output.float(), batch).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


def _validated(job: TrainingJob, model: FullModel, batch: Batch, group: Group) -> _Numbers:
    """Return the output of a pass as validation computes it."""
    return {"the output": _output(job, model, batch, group, job.seed)}


def _output(job: TrainingJob, model: FullModel, batch: Batch, group: Group, seed: int) -> torch.Tensor:
    model.eval()
    group.seed(seed)
    try:
        with (
            refusing(lambda error: _why_failed(job, "validation", len(batch), error)),
            torch.inference_mode(),
        ):
            return model(*batch.inputs).float()
    finally:
        model.train()


def _refuse_mixed_rows(job: TrainingJob, model: FullModel, batch: Batch, group: Group) -> None:
    """Raise `BadConfiguration` if the output for a row of `batch` in validation depends on the rows beside it.

    A served row may come alone. Without this check a model that subtracts the mean of its rows trained to its end, and
    its export was refused then.
    """
    output, again = (_output(job, model, batch, group, seed) for seed in (job.seed, job.seed + 1))
    if not _equal(output, again, exactly=False):
        return  # it draws random numbers, which other numbers of rows draw otherwise
    # A running sum, and a recurrent layer that takes the rows for a sequence, leave the first row as it is.
    parts = [batch.split([1, len(batch) - 1])[0], batch.split([len(batch) - 1, 1])[1]]
    alone = torch.cat(
        [_output(job, model, part, group, job.seed).reshape(output[:1].shape) for part in parts]
    )
    differs = (torch.cat([output[:1], output[-1:]]) - alone).nan_to_num().abs()
    if not bool((differs <= _MIXED * output.nan_to_num().abs().max()).all()):
        raise BadConfiguration(
            f"the model of {job.model_function} gives a row another output in validation if other rows are beside it, "
            "and a served row may come alone. Remove sums, means and norms over the rows, or use nn.LayerNorm"
        )


def _why_failed(job: TrainingJob, what: str, rows: int, error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    if rows == 1 and "more than 1 value per channel" in text and what == "validation":
        return (
            f"the model of {job.model_function} normalizes over the rows of a pass also in validation "
            "(track_running_stats=False), and some passes there, like some of a server, have a single row. Use "
            "nn.LayerNorm"
        )
    if rows == 1 and "more than 1 value per channel" in text:
        settings = job.settings
        return (
            f"the model of {job.model_function} normalizes over the rows of a pass, and some passes have a single row "
            f"(global_batch {settings.global_batch}, lanes {settings.lane_count}, workers {settings.workers}, "
            f"gradient_accumulation_steps {settings.gradient_accumulation_steps}). Raise global_batch, lower "
            "gradient_accumulation_steps or workers, or use nn.LayerNorm"
        )
    return (
        f"the model of {job.model_function} cannot be trained: its first pass of {what}, over {rows} rows, failed with "
        f"{type(error).__name__}: {text}"
    )


def _refuse_types(model: nn.Module, *, is_bitwise: bool) -> None:
    for name, parameter in model.named_parameters():
        if is_bitwise and parameter.requires_grad and parameter.dtype != torch.float32:
            raise BadConfiguration(
                f"{name} is {_named(parameter)}: determinism bitwise adds up gradients of float32. Build the model "
                "with .float(), or use determinism tolerance"
            )
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.dtype not in _SENT:
            raise BadConfiguration(
                f"{name} is {_named(value)}, which workers cannot send each other. Use one of "
                f"{', '.join(sorted(str(one).removeprefix('torch.') for one in _SENT))}"
            )


def _refuse_gradients(gradients: _Numbers, *, is_bitwise: bool) -> None:
    unused = [name for name, gradient in gradients.items() if gradient is None]
    if unused and not is_bitwise:  # `bitwise` treats a missing gradient as zeros
        raise BadConfiguration(
            f"the loss does not depend on {name_some(unused)}: workers would wait for a gradient that never comes. "
            "Remove unused parameters, or set requires_grad to False"
        )
    for name, gradient in gradients.items():
        if gradient is not None and gradient.is_sparse:
            raise BadConfiguration(
                f"the gradient of {name} is sparse, and AdamW needs a dense one: leave out sparse=True"
            )


def _refuse_state(
    job: TrainingJob, model: FullModel, what: str, compute: _Compute, batch: Batch, other: Batch
) -> None:
    """Raise `BadConfiguration` if a pass changes the next pass, or depends on the rank that runs it.

    Runs a pass over the rows `other` in between: a model that remembered rows of the pass before gave the same numbers
    for the same rows twice.
    """
    package = _package(job)
    compute(batch)  # fills caches
    fixed, values, attributes = Fixed(model), tensor_digests(model), plain_digests(model, package)
    fixed.remember()
    first = _kept(compute(batch))
    changed = _other(values, tensor_digests(model)) + _other(attributes, plain_digests(model, package))
    # Also tensors that were written with an equal value: power iteration has converged on the first weights.
    changed += [name for name in fixed.changes() if name not in changed]
    refuse_changed(changed, what)
    numbers = "gradients" if what == "training" else "values"
    compute(other)
    _refuse_other(
        first,
        compute(batch),
        f"the same rows with the same random numbers gave {{}} two {numbers} in {what}: the model uses "
        "state that the platform does not know (a counter, a clock, earlier rows, a random generator of its own), so "
        "that determinism bitwise cannot hold. Draw from torch, numpy.random or random, or use determinism tolerance",
    )
    with _as_any_rank():
        _refuse_other(
            first,
            compute(batch),
            f"{{}} has different {numbers} in {what} if the model cannot read its rank or the number of workers "
            "(torch.distributed, RANK, WORLD_SIZE), so that determinism bitwise cannot hold. Remove their use from "
            "the model, or use determinism tolerance",
        )


def _examine_memory(
    job: TrainingJob, model: FullModel, computes: Mapping[str, _Compute], batch: Batch, *, is_warned: bool
) -> int:
    """Raise `BadConfiguration` if the model remembers earlier weights outside of its state; return a digest of its
    numbers at the first weights.

    A checkpoint does not hold a plain attribute. A step counter or a moving average of weights in one gave the same
    bits on any number of workers, and others after a resume. So take steps, load the first weights as a resume does,
    and compare. Without `bitwise`, refuse only a change of the output, which the exported model would not have, and
    emit a warning about others if `is_warned`.
    """
    package, kept = _package(job), {name: value.clone() for name, value in model.state_dict().items()}
    is_bitwise = job.settings.determinism == "bitwise"

    def observed() -> tuple[_Numbers, dict[str, bytes]]:
        numbers = {
            f"{name} ({what})": value
            for what, compute in computes.items()
            for name, value in _kept(compute(batch)).items()
        }
        lost = {name: digest_of(one) for name, one in model.named_buffers() if name not in kept}
        return numbers, lost | plain_digests(model, package)

    first, before = observed()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=_MOVE)  # a real one, which calls the hooks of optimizers
    for _ in range(_STEPS):
        for parameter in trained:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        for compute in computes.values():
            compute(batch)
    with refusing(
        lambda error: f"{job.model_function} cannot load its own state_dict, as a resume must: {error}"
    ):
        model.load_state_dict(kept)
    second, after = observed()
    names = _other(before, after)
    others = [name for name, value in first.items() if not _equal(value, second[name], exactly=is_bitwise)]
    _tell_memory(job, names, others, is_warned=is_warned)
    digest = hashlib.sha256()
    for value in first.values():
        digest.update(b"" if value is None else digest_of(value))
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def _tell_memory(job: TrainingJob, names: Sequence[str], others: Sequence[str], *, is_warned: bool) -> None:
    """Refuse, or warn about, state `names` that stayed changed, and numbers `others` that changed with it."""
    is_bitwise = job.settings.determinism == "bitwise"
    stays = (
        f"{name_some(names)} of {job.model_function} changed with the weights, and stayed changed when the first "
        "weights were loaded again."
    )
    gave = (
        f"{name_some(others)} gave other numbers after two steps, although the first weights were loaded again. The "
        "model keeps state of earlier steps that a checkpoint does not hold."
    )
    lost = "A checkpoint does not hold it, so a resume would give other bits"
    if is_bitwise and names:
        raise BadConfiguration(f"{stays} {lost}: {_REMEDY}, or use determinism tolerance")
    if is_bitwise and others:
        raise BadConfiguration(
            f"{gave} A resume would give other bits: {_REMEDY}, or use determinism tolerance"
        )
    if _OUTPUT in others:
        raise BadConfiguration(
            f"{stays if names else gave} The exported model would not have the validation loss that training shows: "
            f"{_REMEDY}"
        )
    if (names or others) and is_warned:
        emit("warning", 0, message=f"{stays if names else gave} {lost}: {_REMEDY}")


def _package(job: TrainingJob) -> str:
    return job.model_function.partition(".")[0]


def _kept(numbers: _Numbers) -> _Numbers:
    return {name: None if one is None else one.clone() for name, one in numbers.items()}


def _other(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    return [name for name, digest in after.items() if before.get(name) != digest]


def _refuse_other(one: _Numbers, other: _Numbers, message: str) -> None:
    for name, value in one.items():
        if not _equal(value, other[name]):
            raise BadConfiguration(message.format(name))


@contextmanager
def _as_any_rank() -> Generator[None]:
    """Hide the rank and world size from the code inside: no default process group, no variables."""
    world, environment = distributed.group.WORLD, dict(os.environ)
    distributed.group.WORLD = None
    for name in _OF_A_RANK:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        distributed.group.WORLD = world
        os.environ |= environment


class Fixed:
    """Watch at each step over tensors that a forward pass must not change: a model may begin to change them after the
    first pass. Costs a look at a counter per tensor. Writes that bypass torch's counter (`.data`) are found by the
    preflight, and by the comparison of the ranks' weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[str, dict[str, Any], str]] = [
            (f"{path}.{name}".lstrip("."), values, name)
            for path, module in model.named_modules()
            for values in (module._parameters, module._buffers)
            for name in list(values.keys())  # `values` of a scripted module is not a dictionary
        ]
        self._before: list[tuple[int, int]] = []

    def remember(self) -> None:
        """Remember the tensors' counters. Call it before the passes of a step."""
        self._before = self._now()

    def changes(self) -> list[str]:
        """Return the names of the tensors that were written since `remember`. Call it after the passes of a step."""
        pairs = zip(self._places, self._before, self._now(), strict=True)
        return [path for (path, _, _), before, after in pairs if before != after]

    def _now(self) -> list[tuple[int, int]]:
        held = (values[name] for _, values, name in self._places)
        return [(id(value), 0 if value is None else value._version) for value in held]


def refuse_changed(names: Sequence[str], what: str = "training") -> None:
    """Raise `BadConfiguration` if `names`, the tensors that a forward pass changed, is not empty."""
    if not names:
        return
    raise BadConfiguration(
        f"a forward pass in {what} changes {name_some(names)}. How often a worker calls the model depends on the "
        "number of workers, so that determinism bitwise cannot hold. "
        "Leave such layers out (batch norm, spectral norm, max_norm of an embedding, running means), or use "
        "determinism tolerance"
    )


def _equal(one: torch.Tensor | None, other: torch.Tensor | None, *, exactly: bool = True) -> bool:
    if one is None or other is None:
        return one is other
    if exactly:
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    # A GPU may sum in another order each time. Compare with the largest number, since small ones cancel.
    size = one.nan_to_num().abs().max() if one.numel() else 0.0
    return one.shape == other.shape and bool(((one - other).nan_to_num().abs() <= _NOISE * size).all())


def _named(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")

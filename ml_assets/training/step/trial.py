"""A pass forward and backward before the first step: what can never train is refused at once, not after three attempts.

With `determinism: bitwise` the pass is done again and again, in training and in validation. It must leave everything as
it was and give the same numbers, also where the model cannot ask for its rank. Else what a model learns would depend on
how often a worker called it, and so on the number of workers. This looks at what happens; there is no list of layers.
Not here: what the first weights are (load), the ranks' agreement on them (sameness).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (the annotations of torch are partial, and which tensor a name stands for only its private dictionaries say)

import hashlib
import os
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from torch import distributed, nn

from ml_assets.training.data.batches import Batch, SplitReader
from ml_assets.training.data.order import RowOrder, ShardSlice, fewest_of_contiguous
from ml_assets.training.data.preprocess import FullModel
from ml_assets.training.process.group import Group
from ml_assets.training.step.faults import refusing
from ml_assets.training.step.memory import passes, rows_at_once
from ml_assets.training.step.objectives import Objective
from ml_assets.training.step.precision import computing
from resources.job.errors import BadConfiguration
from resources.job.job import TrainingJob

ROWS = 64
"""Rows of the trial pass, where a step has as many: a parameter that only some rows use is then used."""
_SENT = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
    }
)
"""Types of numbers that ranks can send each other, over gloo as over NCCL."""
_OF_A_RANK = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
)
"""Variables that torch's agent sets for each rank."""
_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


def try_out(
    job: TrainingJob,
    model: FullModel,
    objective: Objective,
    order: RowOrder,
    validation: SplitReader,
    group: Group,
) -> None:
    """Raise `BadConfiguration` if `model` can never train as `job` asks; each rank for itself.

    `validation` gives the rows of all passes, also of those in training. The model is the same afterwards, gradients
    are gone. Models of which a rank keeps a part are checked by their types alone: the whole might not fit.
    """
    is_bitwise = job.settings.determinism == "bitwise"
    _refuse_types(model, is_bitwise=is_bitwise)
    if not job.settings.parallel.has_replicas:
        return
    rows = min(fewest_rows(job, order, group.world_size), ROWS)
    with leaving_no_trace(model):
        batch = some_rows(validation, max(rows, 1))
        if is_bitwise and job.decode:
            _refuse_random_decoding(job, validation, batch)
        _refuse_gradients(_pass(job, model, objective, batch, group), is_bitwise=is_bitwise)
        _judged(job, model, some_rows(validation, _fewest_judged(job, order, validation, group)), group)
        if is_bitwise:
            _refuse_state(model, "training", lambda: _pass(job, model, objective, batch, group))
            _refuse_state(model, "validation", lambda: _judged(job, model, batch, group))


@contextmanager
def leaving_no_trace(model: nn.Module) -> Generator[None]:
    """Give the buffers of `model` the values they had, and take its gradients away, after passes that do not count."""
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
    """Return the rows of the smallest pass of a worker in any step, at least."""
    of_batch = order.rows // order.steps_per_epoch
    of_lane = of_batch // order.lanes
    if job.settings.determinism == "bitwise":
        return of_lane
    return of_lane * (order.lanes // world_size) // passes(job.settings, world_size)


def _fewest_judged(job: TrainingJob, order: RowOrder, validation: SplitReader, group: Group) -> int:
    """Return the rows of the smallest pass of a validation, `ROWS` at most."""
    at_once = rows_at_once(job.settings, group.world_size)
    return min(fewest_of_contiguous(validation.shard_rows, order.lanes, at_once), ROWS)


def some_rows(reader: SplitReader, rows: int) -> Batch:
    """Return the first rows of `reader`, again and again if it has fewer."""
    few = np.arange(rows, dtype=np.int64) % reader.shard_rows[0]
    return reader.take([ShardSlice(0, few)])


def _refuse_random_decoding(job: TrainingJob, validation: SplitReader, batch: Batch) -> None:
    """Raise `BadConfiguration` where the rows of `batch`, decoded again, are other rows.

    Few rows are decoded many times: a flip with probability 1/2 leaves one row alone in every second look.
    """
    for _ in range(-(-ROWS // len(batch))):
        with _as_any_rank():
            again = some_rows(validation, len(batch))
        if not all(map(_equal, batch.inputs, again.inputs)):
            raise BadConfiguration(
                f"{job.decode} gave two results for the same bytes: it draws random numbers, or depends on something "
                "besides the bytes, and determinism bitwise cannot hold. Put crops, flips and noise into the model's "
                "forward, whose random numbers can be repeated, or use determinism tolerance"
            )


def _pass(
    job: TrainingJob, model: FullModel, objective: Objective, batch: Batch, group: Group
) -> dict[str, torch.Tensor | None]:
    """Gradient of each parameter that is to be trained, after a pass in training mode."""
    model.zero_grad(set_to_none=True)
    group.seed(job.seed)
    with refusing(lambda error: _why_failed(job, "training", len(batch), error)):
        with computing(job.settings.precision, group.device):
            output = model(*batch.inputs)
        objective.loss(output.float(), batch).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


def _judged(job: TrainingJob, model: FullModel, batch: Batch, group: Group) -> dict[str, torch.Tensor | None]:
    """Output of a pass as validation does it."""
    model.eval()
    group.seed(job.seed)
    try:
        with (
            refusing(lambda error: _why_failed(job, "validation", len(batch), error)),
            torch.inference_mode(),
        ):
            return {"the output": model(*batch.inputs).float()}
    finally:
        model.train()


def _why_failed(job: TrainingJob, what: str, rows: int, error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    if rows == 1 and "more than 1 value per channel" in text and what == "validation":
        return (
            f"the model of {job.model_function} normalizes over the rows of a pass also in validation "
            "(track_running_stats=False), and some passes there have a single row. Use nn.LayerNorm"
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


def _refuse_gradients(gradients: Mapping[str, torch.Tensor | None], *, is_bitwise: bool) -> None:
    unused = [name for name, gradient in gradients.items() if gradient is None]
    if unused and not is_bitwise:  # where lanes are summed, no gradient is a gradient of zeros
        raise BadConfiguration(
            f"the loss does not depend on {', '.join(unused[:3])}{' and others' if len(unused) > 3 else ''}: workers "
            "would wait for a gradient that never comes. Remove what is not used, or set requires_grad to False"
        )
    for name, gradient in gradients.items():
        if gradient is not None and gradient.is_sparse:
            raise BadConfiguration(
                f"the gradient of {name} is sparse, and AdamW needs a dense one: leave out sparse=True"
            )


def _refuse_state(model: FullModel, what: str, compute: Callable[[], dict[str, torch.Tensor | None]]) -> None:
    """Raise where a pass changes what the next one computes, or where it knows which worker does it."""
    compute()  # fills caches
    fixed, values, attributes = Fixed(model), _digests(model), _attributes(model)
    fixed.remember()
    first = {name: None if one is None else one.clone() for name, one in compute().items()}
    now, later = _digests(model), _attributes(model)
    changed = [name for name, digest in now.items() if values.get(name) != digest]
    changed += [name for name, digest in later.items() if attributes.get(name) != digest]
    # Also what was written and is the same by chance: power iteration has converged on the first weights.
    changed += [name for name in fixed.changes() if name not in changed]
    refuse_changed(changed, what)
    numbers = "gradients" if what == "training" else "values"
    _refuse_other(
        first,
        compute(),
        f"the same rows with the same random numbers gave {{}} two {numbers} in {what}: the model computes with "
        "something that the platform does not know (a counter, a clock, a random generator of its own), so that "
        "determinism bitwise cannot hold. Draw from torch, numpy.random or random, or use determinism tolerance",
    )
    with _as_any_rank():
        _refuse_other(
            first,
            compute(),
            f"{{}} has other {numbers} in {what} where the model cannot ask for its rank or the number of workers "
            "(torch.distributed, RANK, WORLD_SIZE), so that determinism bitwise cannot hold. Leave that out of the "
            "model, or use determinism tolerance",
        )


def _refuse_other(
    one: Mapping[str, torch.Tensor | None], other: Mapping[str, torch.Tensor | None], message: str
) -> None:
    for name, value in one.items():
        if not _equal(value, other[name]):
            raise BadConfiguration(message.format(name))


@contextmanager
def _as_any_rank() -> Generator[None]:
    """Hide from what runs inside which rank this is, and of how many: no default process group, no variables."""
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
    """Tensors that a forward pass must leave alone, watched at each step: a model may begin to change itself later
    than in the first pass. Costs a look at a counter of each tensor; what is written past torch (`.data`) is found by
    the trial and where ranks compare their weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[str, dict[str, Any], str]] = [
            (f"{path}.{name}".lstrip("."), values, name)
            for path, module in model.named_modules()
            for values in (module._parameters, module._buffers)
            for name in list(values.keys())  # those of a scripted module are no dictionaries
        ]
        self._before: list[tuple[int, int]] = []

    def remember(self) -> None:
        """Call before the passes of a step."""
        self._before = self._now()

    def changes(self) -> list[str]:
        """Call after them. Return the names of what one of them wrote."""
        pairs = zip(self._places, self._before, self._now(), strict=True)
        return [path for (path, _, _), before, after in pairs if before != after]

    def _now(self) -> list[tuple[int, int]]:
        held = (values[name] for _, values, name in self._places)
        return [(id(value), 0 if value is None else value._version) for value in held]


def refuse_changed(names: Sequence[str], what: str = "training") -> None:
    """Raise `BadConfiguration` where a forward pass changed `names`; none is fine."""
    if not names:
        return
    raise BadConfiguration(
        f"a forward pass in {what} changes {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}. How "
        "often a worker calls the model depends on the number of workers, so that determinism bitwise cannot hold. "
        "Leave such layers out (batch norm, spectral norm, max_norm of an embedding, running means), or use "
        "determinism tolerance"
    )


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _digests(model: nn.Module) -> dict[str, bytes]:
    values = (*model.named_parameters(), *model.named_buffers())
    return {name: digest_of(value) for name, value in values}


def digest_of(value: torch.Tensor) -> bytes:
    """Return the SHA-256 of a tensor's bytes."""
    content = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    return hashlib.sha256(cast(Any, content.numpy())).digest()


def _attributes(model: nn.Module) -> dict[str, bytes]:
    """Digest of each attribute of a module that is no parameter, buffer or module, by its path."""
    return {
        f"{path}.{name}".lstrip("."): _digest_of_any(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _OF_TORCH
    }


def _digest_of_any(value: Any) -> bytes:
    digest = hashlib.sha256()
    for part in _parts(value, set()):
        digest.update(part)
    return digest.digest()


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Bytes of all that `value` holds; of objects in `seen` nothing more is said."""
    if isinstance(value, torch.Tensor):
        yield digest_of(value)
    elif isinstance(value, np.ndarray):
        yield np.ascontiguousarray(value).tobytes() if value.dtype != object else repr(value).encode()
    elif isinstance(value, Mapping):
        for key, one in cast(Mapping[Any, Any], value).items():
            yield repr(key).encode()
            yield from _parts(one, seen)
    elif isinstance(value, list | tuple):
        for one in cast(Sequence[Any], value):
            yield from _parts(one, seen)
    else:
        try:
            yield pickle.dumps(value)
        except (
            Exception
        ):  # functions, locks, handles: what cannot be copied is known by what it is, and what it holds
            yield type(value).__qualname__.encode()
            if id(value) not in seen:
                seen.add(id(value))
                yield from _parts(_held(value), seen)


def _held(value: Any) -> dict[str, Any]:
    """Attributes of an object, and what a function has taken from around it."""
    held = dict(cast("dict[str, Any]", getattr(value, "__dict__", {})))
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # not set yet
                held[name] = cell.cell_contents
    return held


def _named(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")

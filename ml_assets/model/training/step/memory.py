"""Memory of a step: rows that a worker computes with at once, activations that it computes again, and advice after its
memory ran out, in the platform's loop or a script's.

Activation checkpointing: backward recomputes the activations of a layer, so that memory does not hold them. A layer is
a member of an `nn.ModuleList` or `nn.Sequential` that has modules of its own: one of a transformer, not a single
matrix. Its inputs are kept. Bits do not change: the recomputation repeats the same randomness (dropout).

Not here: the passes (training.gradients), pods that a cluster killed at their memory limit
(resources.launcher.kubernetes), full disks (resources.job.errors).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (the annotations of torch are partial, and buffers are swapped in a module's private dictionary)

import errno
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from ml_assets.model.training.process.group import Group
from resources.job.errors import BadConfiguration, OutOfMemory
from resources.job.training_settings import TrainingSettings

_FOR_SCRIPTS = (
    "Change the script, which owns the loop: fewer rows at once (a smaller batch, or several backward passes a step), "
    "torch.utils.checkpoint, torch.autocast in bfloat16, fewer processes that load data. A change of "
    "model.hyperparameters needs no change of code. With only more memory (on a cluster resources.memory, for one "
    "launch --resources memory=…) training resumes from its checkpoint"
)


def passes(settings: TrainingSettings, world_size: int) -> int:
    """Return the forward and backward passes of a worker per step, under `tolerance`.

    With fewer workers than configured, this exceeds `gradient_accumulation_steps`: each worker has more rows, but not
    more memory.
    """
    return -(-settings.gradient_accumulation_steps * settings.workers // world_size)


def rows_at_once(settings: TrainingSettings, world_size: int) -> int:
    """Return the most rows of a pass."""
    lane_rows = settings.global_batch // settings.lane_count
    if settings.determinism == "bitwise":
        return lane_rows
    lanes = -(-settings.lane_count * settings.parallel.model_workers // world_size)
    return -(-lanes * lane_rows // passes(settings, world_size))


@contextmanager
def advising(settings: TrainingSettings, group: Group) -> Generator[None]:
    """Raise `OutOfMemory` with advice if memory runs out inside the block."""
    with _naming(group.rank, group.world_size, lambda: _advice(settings, group)):
        yield


@contextmanager
def advising_script(rank: int, world_size: int) -> Generator[None]:
    """Raise `OutOfMemory` with advice for a script's own loop."""
    with _naming(rank, world_size, lambda: _FOR_SCRIPTS):
        yield


@contextmanager
def _naming(rank: int, world_size: int, advice: Callable[[], str]) -> Generator[None]:
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        place = "its GPU" if isinstance(error, torch.OutOfMemoryError) else "this machine"
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        raise OutOfMemory(
            f"rank {rank} of {world_size} ran out of memory of {place}: {what}. {advice()}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a device or this machine ran out of memory."""
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
    )


def _advice(settings: TrainingSettings, group: Group) -> str:
    rows = rows_at_once(settings, group.world_size)
    if settings.determinism == "bitwise":
        made_of = f"global_batch {settings.global_batch} / lanes {settings.lane_count}"
        fewer = "more lanes"
    else:
        done = passes(settings, group.world_size)
        made_of = f"global_batch {settings.global_batch} / {group.world_size} workers / {done} passes"
        fewer = f"gradient_accumulation_steps {2 * settings.gradient_accumulation_steps}"
    steps = [f"{fewer} ({-(-rows // 2)} rows at once, the same batch)"]
    if settings.activation_checkpointing != "full":
        stronger = "full" if settings.activation_checkpointing == "selective" else "selective, then full"
        steps.append(f"activation_checkpointing {stronger} (resumes from the checkpoint, the same weights)")
    if settings.precision == "fp32":
        steps.append("precision bf16 (halves the memory for backward)")
    if settings.parallel.shard != "full" and group.world_size > 1:
        steps.append(
            f"parallel shard: full (a worker keeps 1/{group.world_size} of weights, gradients and optimizer state)"
        )
    steps.append("a smaller global_batch (other weights), or a larger device")
    return f"It computes with {rows} rows at once ({made_of}). Remedies, the smallest change first: {'; '.join(steps)}"


_Context: TypeAlias = AbstractContextManager[Any]
_Buffers: TypeAlias = dict[str, torch.Tensor | None]
_aten = torch.ops.aten
_COSTLY: list[Any] = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
]
"""Operations whose results `selective` keeps: they take most of the time. The others (norms, activations, dropout) take
most of the memory."""


def layers_of(core: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost layers of a model, in order."""
    for child in core.children():
        has_parts = next(child.children(), None) is not None
        if isinstance(core, nn.ModuleList | nn.Sequential) and has_parts:
            yield child
        else:
            yield from layers_of(child)


def checkpoint_activations(
    core: nn.Module, what: Literal["selective", "full"], *, is_compiled: bool = False
) -> None:
    """Make the layers of `core` keep only their inputs (`full`), or also the results of products (`selective`).

    Works in place; names of modules and parameters stay. Raises `BadConfiguration` if there are no such layers, or if a
    layer would not compute the same bits again.
    """
    layers = list(layers_of(core))
    if not layers:
        raise BadConfiguration(
            f"activation_checkpointing {what}: {type(core).__name__} has no layer made of several modules "
            "in an nn.ModuleList or nn.Sequential: put repeated layers into one, or leave the key out"
        )
    if what == "selective" and any(
        isinstance(part, nn.RNNBase) for layer in layers for part in layer.modules()
    ):
        raise BadConfiguration(
            "activation_checkpointing selective: recurrent layers (GRU, LSTM) give other bits with it, and a "
            "training must resume with the same bits. Use activation_checkpointing full"
        )
    if any(isinstance(part, torch.jit.ScriptModule) for layer in layers for part in layer.modules()):
        raise BadConfiguration(
            f"activation_checkpointing {what}: a layer has a part in TorchScript, whose interpreter cannot be run "
            "again for backward. Leave it out, or use the module as it was before torch.jit.script"
        )
    kept = noop_context_fn if what == "full" else partial(create_selective_checkpoint_contexts, _COSTLY)
    for layer in layers:
        with_buffers = [part for part in layer.modules() if part._buffers]
        # The compiler only accepts contexts that draw no random numbers. With `compile`, recomputation may change bits.
        contexts = kept if is_compiled and not with_buffers else partial(_alike, kept, with_buffers)
        setattr(layer, "forward", _checkpointed(layer.forward, contexts))  # noqa: B010 - a method, says pyright


def _alike(
    kept: Callable[[], tuple[_Context, _Context]], parts: Sequence[nn.Module]
) -> tuple[_Context, _Context]:
    """Return the contexts of `kept`, with a second forward that repeats the first. It begins with the same buffers of
    `parts` and the same state of numpy's and Python's random generators, and changes neither. Torch handles its own.

    Without this, running statistics are updated twice per step: `running_var` came to 0.288 instead of 0.419.
    """
    first, second = kept()
    buffers = [{name: _copied(value) for name, value in part._buffers.items()} for part in parts]
    return first, _as_before(second, parts, buffers, (np.random.get_state(), random.getstate()))


@contextmanager
def _as_before(
    second: _Context, parts: Sequence[nn.Module], buffers: Sequence[_Buffers], numbers: tuple[Any, Any]
) -> Generator[None]:
    after = [dict(part._buffers) for part in parts]
    numbers_after = np.random.get_state(), random.getstate()
    with second:
        _put(parts, buffers, numbers)
        try:
            yield
        finally:
            _put(parts, after, numbers_after)


def _put(parts: Sequence[nn.Module], buffers: Sequence[_Buffers], numbers: tuple[Any, Any]) -> None:
    for part, values in zip(parts, buffers, strict=True):
        part._buffers.update(values)
    of_numpy, of_random = numbers
    np.random.set_state(of_numpy)
    random.setstate(of_random)


def _copied(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.clone()


def _checkpointed(forward: Callable[..., Any], contexts: Callable[[], Any]) -> Callable[..., Any]:
    @wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return checkpointed

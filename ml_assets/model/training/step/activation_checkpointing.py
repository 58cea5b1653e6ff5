"""Activation checkpointing: backward recomputes the activations of a layer, so that memory does not hold them.

A layer is a member of an `nn.ModuleList` or `nn.Sequential` that has modules of its own: one of a transformer, not a
single matrix. Its inputs are kept. Bits do not change: the recomputation repeats the same randomness (dropout).

Here: the choice of modules, and the values they keep. Not here: the passes that call them (training.gradients).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (the annotations of torch are partial, and buffers are swapped in a module's private dictionary)

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from resources.job.errors import BadConfiguration

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

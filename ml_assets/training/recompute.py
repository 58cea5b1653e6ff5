"""Activation checkpointing: what a block leaves for backward is computed again then, instead of being kept.

A block is a member of an `nn.ModuleList` or `nn.Sequential` that has modules of its own: a layer of a transformer, not
a lone matrix. Its inputs are kept. The same bits come out: randomness (dropout) is repeated as it was.

Here: which modules, and what they keep. Not here: when they compute (gradients).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (the annotations of torch are partial, and buffers are exchanged where a module keeps them)

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from resources.launcher.errors import BadConfiguration

_Context: TypeAlias = AbstractContextManager[Any]
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
"""Operations `selective` keeps the results of: they take the time, the others (norms, activations, dropout) the rest of
the memory."""


def blocks_of(core: nn.Module) -> Iterator[nn.Module]:
    """The outermost blocks of a model, in order."""
    for child in core.children():
        has_parts = next(child.children(), None) is not None
        if isinstance(core, nn.ModuleList | nn.Sequential) and has_parts:
            yield child
        else:
            yield from blocks_of(child)


def recompute(core: nn.Module, what: Literal["selective", "full"]) -> None:
    """Have the blocks of `core` keep only their inputs (`full`), or also the results of products (`selective`).

    In place; no module or parameter gets another name. Raises `BadConfiguration` where there are no blocks.
    """
    blocks = list(blocks_of(core))
    if not blocks:
        raise BadConfiguration(
            f"recompute {what}: {type(core).__name__} has no blocks. One is a member of an nn.ModuleList or "
            "nn.Sequential that is made of several modules: put repeated layers into one, or leave recompute out"
        )
    kept = noop_context_fn if what == "full" else partial(create_selective_checkpoint_contexts, _COSTLY)
    for block in blocks:
        averaging = [part for part in block.modules() if getattr(part, "track_running_stats", False)]
        contexts = partial(_counting_once, kept, averaging) if averaging else kept
        setattr(block, "forward", _recomputed(block.forward, contexts))  # noqa: B010 - a method, says pyright


def _counting_once(
    kept: Callable[[], tuple[_Context, _Context]], averaging: Sequence[nn.Module]
) -> tuple[_Context, _Context]:
    """The contexts of `kept`, with the running statistics of `averaging` (batch norms) left alone the second time.

    Updated twice a step they come to other values: `running_var` 0.288 instead of 0.419.
    """
    first, second = kept()
    return first, _both(second, averaging)


@contextmanager
def _both(second: _Context, averaging: Sequence[nn.Module]) -> Generator[None]:
    # Copies for the second time: autograd keeps what a batch norm read, so the statistics cannot be left out.
    kept = [dict(part._buffers) for part in averaging]
    copies = [{name: _copied(value) for name, value in buffers.items()} for buffers in kept]
    with second:
        for part, buffers in zip(averaging, copies, strict=True):
            part._buffers.update(buffers)
        try:
            yield
        finally:
            for part, buffers in zip(averaging, kept, strict=True):
                part._buffers.update(buffers)


def _copied(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.clone()


def _recomputed(forward: Callable[..., Any], contexts: Callable[[], Any]) -> Callable[..., Any]:
    @wraps(forward)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return recomputed

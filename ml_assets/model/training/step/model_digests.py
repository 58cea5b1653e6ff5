"""Digests of everything that a model may read and change: tensors, plain attributes, attributes of its classes, global
variables of their Python modules.

Here: the digests; equal weights on all ranks, copied from rank 0 at the start and compared; equal arithmetic of all
processes. Not here: which changes are refused (preflight), sums that give
the same bits on all ranks (parallel.reduction).
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import hashlib
import io
import pickle
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ml_assets.model.training.process.group import Group
from resources.job.errors import BadConfiguration

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


def digest_of(value: torch.Tensor) -> bytes:
    """Return the SHA-256 of a tensor's bytes; of a sharded tensor, of the shard on this rank."""
    if isinstance(value, DTensor):
        value = value.to_local()
    content = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    return hashlib.sha256(cast(Any, content.numpy())).digest()


def tensor_digests(model: nn.Module) -> dict[str, bytes]:
    """Return the digest of each parameter and buffer, by its name."""
    values = (*model.named_parameters(), *model.named_buffers())
    return {name: digest_of(value) for name, value in values}


def plain_digests(model: nn.Module, package: str, only: Container[str] | None = None) -> dict[str, bytes]:
    """Return the digest of each value that no `state_dict` holds, by its path; of `only` these paths.

    These are the plain attributes of modules. Of the classes that `package`, a top-level package, defines, also the
    attributes of the class and the global variables of its Python module. Functions, classes and imported modules are
    left out.
    """
    classes = {
        one: None  # in the order of the model, without repetition
        for module in model.modules()
        for one in type(module).__mro__
        if one.__module__.partition(".")[0] == package
    }
    python = {one.__module__: sys.modules[one.__module__] for one in classes if one.__module__ in sys.modules}
    shared = {f"{one.__module__}.{one.__qualname__}": vars(one) for one in classes} | {
        name: vars(module) for name, module in python.items()
    }
    return {
        f"{path}.{name}".lstrip("."): _digest_of_any(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _OF_TORCH and (only is None or f"{path}.{name}".lstrip(".") in only)
    } | {
        f"{path}.{name}": _digest_of_any(value)
        for path, values in shared.items()
        for name, value in list(values.items())
        if not name.startswith("__") and not _is_code(value)
    }


def _is_code(value: object) -> bool:
    """Return True for modules, classes, functions and descriptors (properties, methods, slots)."""
    return isinstance(value, ModuleType | type | BuiltinFunctionType) or hasattr(type(value), "__get__")


def _digest_of_any(value: Any) -> bytes:
    digest = hashlib.sha256()
    try:
        for part in _parts(value, set()):
            digest.update(part)
    except (
        Exception
    ):  # deep or exotic objects: a model may hold anything, and only what it computes can refuse it
        return type(value).__qualname__.encode()
    return digest.digest()


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield the bytes of all values in `value`. The content of an object in `seen` is not repeated."""
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
            yield _pickled(value)
        except (
            Exception
        ):  # functions, locks, handles: an object that pickle refuses counts by its type and its content
            yield type(value).__qualname__.encode()
            if id(value) not in seen:
                seen.add(id(value))
                yield from _parts(_held(value), seen)


class _Pickler(pickle.Pickler):
    """Pickles a tensor as its digest. Torch's own pickle of it has an address, which an equal tensor does not share."""

    def persistent_id(self, obj: Any) -> bytes | None:
        """See `pickle.Pickler`."""
        return digest_of(obj) if isinstance(obj, torch.Tensor) else None


def _pickled(value: Any) -> bytes:
    content = io.BytesIO()
    _Pickler(content).dump(value)
    return content.getvalue()


def _held(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, and the variables that a function's closure holds."""
    held = dict(cast("dict[str, Any]", getattr(value, "__dict__", {})))
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # a variable without a value yet
                held[name] = cell.cell_contents
    return held


def begin_alike(model: nn.Module, group: Group, *, is_bitwise: bool) -> None:
    """Copy the first weights of rank 0 to all ranks. Collective call.

    With `is_bitwise`, raises `BadConfiguration` if a rank drew other weights: the next training would start
    differently.
    """
    if is_bitwise:
        refuse_differences(
            model,
            group,
            "first weights differ between workers: they are drawn from a generator that the platform does not seed. "
            "Draw from torch, numpy.random or random, or use determinism tolerance",
        )
    group.copy_from_first(value.data for value in (*model.parameters(), *model.buffers()))


def refuse_differences(model: nn.Module, group: Group, message: str) -> None:
    """Raise `BadConfiguration(message)` on all ranks if their weights or buffers differ. Collective call."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(digest_of(value))
    mine = int.from_bytes(digest.digest()[:8], "big", signed=True)
    if len(set(group.gather(mine))) > 1:
        raise BadConfiguration(message)


def refuse_other_numbers(preflight_digest: int, group: Group) -> None:
    """Raise `BadConfiguration` on all ranks if a rank computed another digest in its preflight. Collective call."""
    others = group.gather(preflight_digest)
    rank = next((rank for rank, other in enumerate(others) if other != others[0]), 0)
    if rank:
        raise BadConfiguration(
            f"ranks 0 and {rank} computed different numbers from the same rows and weights: {_WHY_OTHER}"
        )


def refuse_other_machine(preflight_digest: int, recorded: int, step: int) -> None:
    """Raise `BadConfiguration` if `preflight_digest` is not the one `recorded` in the checkpoint of `step`."""
    if preflight_digest != recorded:
        raise BadConfiguration(
            f"the attempts up to step {step} computed other numbers from the same rows and first weights than this "
            f"one: {_WHY_OTHER}. The checkpoints are kept"
        )


_WHY_OTHER = (
    "the machines differ (kind of processor or GPU), or the model reads something that differs between processes "
    "(process id, host name, clock, environment variable). So determinism bitwise cannot hold: use machines of one "
    "kind, remove that from the model, or use determinism tolerance"
)

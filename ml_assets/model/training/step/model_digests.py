"""Digests of everything that a model may read and change: tensors, plain attributes, attributes of its classes, global
variables of their Python modules.

Here: the digests. Not here: which changes are refused (preflight), the comparison of ranks (parallel.sameness).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
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

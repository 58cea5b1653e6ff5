"""Moving average of the weights (`training.average`): validation and the export use it, steps do not.

After step n (from 1) each value moves towards the weight by 1 - d, with d = min(decay, (1 + n) / (10 + n)), as in
`tf.train.ExponentialMovingAverage`: the first weights, which are random, fade soon. Each rank averages what it keeps,
value by value, so a layout changes nothing. Persistent buffers of floats (running statistics) are averaged, too.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (the annotations of torch are partial, and only a module's private dictionaries show the tensor behind a name)

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ml_assets.model.training.checkpoint.parts import State
from ml_assets.model.training.checkpoint.saving import AVERAGE, AVERAGE_BUFFERS


class WeightAverage:
    """Moving average of the weights that this rank keeps."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin with the current weights of `model`, as it is laid out on the ranks."""
        self._model, self._decay = model, decay
        self._sections: State = {AVERAGE: {}, AVERAGE_BUFFERS: {}}
        self._kept: list[tuple[torch.Tensor, Callable[[], torch.Tensor]]] = []
        """Each average once, and a function that returns its current weight."""
        seen: dict[int, torch.Tensor] = {}
        for section, name, value, current in _weights(model):
            if id(value) not in seen:  # a tensor with two names has one average
                # In half precision the small changes of a step would be lost.
                kind = torch.promote_types(value.dtype, torch.float32)
                seen[id(value)] = value.detach().to(kind, copy=True)
                self._kept.append((seen[id(value)], current))
            self._sections[section][name] = seen[id(value)]

    def update(self, steps: int) -> None:
        """Move towards the weights after `steps` steps."""
        rate = 1 - min(self._decay, (1 + steps) / (10 + steps))
        with torch.no_grad():
            for average, value in self._pairs():
                average.lerp_(value.to(average.dtype), rate)

    @contextmanager
    def in_model(self) -> Generator[None]:
        """Give the model the average instead of its weights in the block."""
        with torch.no_grad():
            _reshard(self._model)
            own = [value.clone() for _, value in self._pairs()]
            for average, value in self._pairs():
                value.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                _reshard(self._model)
                for (_, value), before in zip(self._pairs(), own, strict=True):
                    value.copy_(before)

    def state(self) -> State:
        """Return its values, the sections of a checkpoint."""
        return {section: dict(values) for section, values in self._sections.items()}

    def restore(self, state: State) -> None:
        """Load the sections from `state`."""
        for section, values in self._sections.items():
            for name, average in values.items():
                _local(average).copy_(_local(state[section][name]))

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each average, and the current weight, as this rank's parts."""
        return ((_local(average), _local(current())) for average, current in self._kept)


def _weights(model: nn.Module) -> Iterator[tuple[str, str, torch.Tensor, Callable[[], torch.Tensor]]]:
    """Yield section, name, tensor, and a function that returns the current tensor, of each weight under each name."""
    for path, module in model.named_modules(remove_duplicate=False):
        lost = getattr(module, "_non_persistent_buffers_set", ())
        for name, value in module._parameters.items():
            if value is not None and value.is_floating_point():
                # The same object for ever, while FSDP puts a gathered one into the module to compute.
                yield AVERAGE, f"{path}.{name}".lstrip("."), value, partial(_same, value)
        for name, value in module._buffers.items():
            if value is not None and value.is_floating_point() and name not in lost:
                # Looked up each time: a module may put another tensor there.
                current = partial(_buffer, module, name)
                yield AVERAGE_BUFFERS, f"{path}.{name}".lstrip("."), value, current


def _buffer(module: nn.Module, name: str) -> torch.Tensor:
    return module.get_buffer(name)


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _reshard(model: nn.Module) -> None:
    """Drop gathered parameters, so that the next pass gathers the current shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()

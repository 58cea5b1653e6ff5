"""E-processes: laws of the bet, exact expectations in small cases, and false stops under continuous looking."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ml_assets.use.live.e_process import BLOCK, log_e_process, place

ROWS = 8 * BLOCK
"""Rows of a small stream in which every second row is the canary's: two blocks."""
ALTERNATING = np.arange(ROWS) % 2 == 1
outcomes = arrays(np.float64, ROWS, elements=st.floats(0, 1))


def test_a_bet_on_proportions_is_the_published_likelihood_ratio() -> None:
    """Turner, Ly and Gruenwald (2024), section 3: in a block of n and k rows, the bet that grows fastest against equal
    shares is the likelihood ratio to the share of both together."""
    champion, canary, n, k = 0.1, 0.3, 3, 1
    both = (n * champion + k * canary) / (n + k)
    bet = place(
        np.array([champion]), np.ones(1), np.array([n]), np.array([k]), margin=0, smallest=canary - champion
    )
    assert bet.centre[0, 0] == pytest.approx(both)
    for outcome in (0, 1):
        ratios = [
            (one / both) ** outcome * ((1 - one) / (1 - both)) ** (1 - outcome) for one in (champion, canary)
        ]
        assert 1 - bet.champion[0, 0] * (outcome - both) == pytest.approx(ratios[0])
        assert 1 + bet.canary[0, 0] * (outcome - both) == pytest.approx(ratios[1])


@pytest.mark.parametrize("margin", [0.0, 0.1])
@pytest.mark.parametrize("of_champion", [(0.02, 0.0, 1.0), (0.5, 0.45, 0.55)])
def test_the_exact_expectation_is_at_most_one(of_champion: tuple[float, float, float], margin: float) -> None:
    """All outcomes of three blocks, weighted by their probability, at the edge of the hypothesis and inside it.

    The canary's are 0 or 1. `of_champion` is the champion's mean, and its two outcomes."""
    is_canary = np.array([False, False, True] * 3)
    champion, low, high = of_champion
    for canary in (champion / 2, min(champion + margin, 1)):
        total = 0.0
        share = np.where(is_canary, canary, (champion - low) / (high - low))
        for row in product((0.0, 1.0), repeat=len(is_canary)):
            drawn = np.array(row)
            probability = np.where(drawn == 1, share, 1 - share).prod()
            outcome = np.where(is_canary, drawn, low + drawn * (high - low))
            log_e = log_e_process(outcome, is_canary, margin=margin, smallest=0.1, block=1)
            total += probability * np.exp(log_e[-1])
        assert total <= 1 + 1e-12


@pytest.mark.parametrize("earlier", [((0.0, 1.0),) * 4, ((1.0, 3.0), (0.0, 1.0)) * 2])
def test_weights_keep_the_exact_expectation(earlier: tuple[tuple[float, float], ...]) -> None:
    """Rows that weigh more fail more often, on both sides alike, so the weighted means are equal."""
    is_canary = np.array([False, False, True, True] * 2)
    chance = {(0.0, 1.0): 0.5, (0.0, 3.0): 0.25, (1.0, 3.0): 0.25}
    total = 0.0
    for row in product(chance, repeat=4):
        drawn, weights = np.array((*earlier, *row)).T
        log_e = log_e_process(drawn, is_canary, margin=0.0, smallest=0.1, weights=weights, block=1)
        total += np.prod([chance[one] for one in row]) * np.exp(log_e[-1])
    assert 0.9 < total <= 1 + 1e-12


@pytest.mark.parametrize("champion", [0.01, 0.3])
def test_looking_after_every_block_stops_few_equal_canaries(champion: float) -> None:
    random = np.random.default_rng(5)
    stopped = 0
    for _ in range(300):
        is_canary = random.random(800) < 0.3
        drawn = (random.random(800) < champion).astype(float)
        log_e = log_e_process(drawn, is_canary, margin=0.0, smallest=0.05)
        stopped += bool(log_e.max() >= np.log(20))
    assert stopped <= 300 * 0.05


def test_a_worse_canary_is_found() -> None:
    random = np.random.default_rng(5)
    is_canary = random.random(4000) < 0.3
    worse = (random.random(4000) < np.where(is_canary, 0.2, 0.02)).astype(float)
    assert log_e_process(worse, is_canary, margin=0.02, smallest=0.02).max() > np.log(20)
    better = (random.random(4000) < np.where(is_canary, 0.02, 0.2)).astype(float)
    assert log_e_process(better, is_canary, margin=0.02, smallest=0.02).max() <= 1e-12


@given(drawn=outcomes, margin=st.floats(0, 0.9), smallest=st.floats(1e-6, 1))
def test_later_rows_change_no_earlier_value(drawn: np.ndarray, margin: float, smallest: float) -> None:
    whole = log_e_process(drawn, ALTERNATING, margin=margin, smallest=smallest)
    half = log_e_process(drawn[: ROWS // 2], ALTERNATING[: ROWS // 2], margin=margin, smallest=smallest)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(whole[: len(half)], half, rtol=1e-12, atol=1e-12)


@given(
    drawn=outcomes, place_of=st.integers(0, ROWS // 2 - 1).map(lambda one: 2 * one + 1), worse=st.floats(0, 1)
)
def test_a_worse_row_of_the_canary_never_helps_it(drawn: np.ndarray, place_of: int, worse: float) -> None:
    changed = drawn.copy()
    changed[place_of] = max(drawn[place_of], worse)
    before, after = (log_e_process(one, ALTERNATING, margin=0.05, smallest=0.05) for one in (drawn, changed))
    assert (after >= before - 1e-12).all()


@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.1])
def test_an_outcome_outside_its_range_is_refused(wrong: float) -> None:
    drawn = np.zeros(ROWS)
    drawn[3] = wrong
    with pytest.raises(ValueError, match="from 0 to 1"):
        log_e_process(drawn, ALTERNATING, margin=0.0, smallest=0.1)


def test_blocks_without_champion_rows_bet_nothing() -> None:
    log_e = log_e_process(np.ones(8 * BLOCK), np.full(8 * BLOCK, True), margin=0.0, smallest=0.1)
    np.testing.assert_allclose(log_e, 0, atol=1e-12)

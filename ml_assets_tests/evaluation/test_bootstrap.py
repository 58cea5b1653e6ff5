"""Intervals: what they must hold, and what they are for."""

import math

import numpy as np
import pytest
import scipy.stats

from ml_assets.model.evaluation.metrics.bootstrap import (
    Estimate,
    Interval,
    block_form,
    draw_blocks,
    estimate,
    interval,
    joint_intervals,
    paired,
    widening,
)
from ml_assets.model.evaluation.metrics.metrics import METRICS
from ml_assets_tests.evaluation.holdout_case import HoldoutCase, make_holdout

LOGLOSS = METRICS["logloss"]


def difference(case: HoldoutCase, draws: int = 400, *, by_day: bool = True) -> Estimate:
    """Improvement of the challenger's log loss on the champion's."""
    y = case.holdout.get_column("label").to_numpy()
    days = case.holdout.get_column("date").rank("dense").cast(int).to_numpy() - 1
    blocks = days.astype(np.intp) if by_day else np.arange(len(y), dtype=np.intp)
    count = int(blocks.max()) + 1
    counts = draw_blocks(count, draws, seed=1)
    challenger, champion = (
        estimate(block_form(LOGLOSS, y, p, blocks, count), counts, count)
        for p in (case.challenger, case.champion)
    )
    return paired(challenger, champion, higher_is_better=False)


def test_every_redraw_has_as_many_blocks_as_the_holdout() -> None:
    counts = draw_blocks(7, 100, seed=3)
    assert counts.shape == (100, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert np.array_equal(counts, draw_blocks(7, 100, seed=3))
    assert not np.array_equal(counts, draw_blocks(7, 100, seed=4))


@pytest.mark.parametrize("days", [8, 30])
def test_ninety_five_percent_interval_holds_the_truth_about_as_often(days: int) -> None:
    [truth] = [interval(difference(make_holdout(days=6000, rows_a_day=20, seed=99), draws=100), 0.95).value]
    assert truth is not None
    held = 0
    rounds = 150
    for seed in range(rounds):
        found = interval(difference(make_holdout(days=days, rows_a_day=30, seed=seed), draws=300), 0.95)
        held += bool(found.low is not None and found.high is not None and found.low <= truth <= found.high)
    # Bounds of a binomial of 150 at 0.95 ± what few and skewed blocks cost; plain percentiles get 0.80 at 8.
    assert 0.85 <= held / rounds <= 0.995


def test_single_rows_make_intervals_too_narrow() -> None:
    case = make_holdout(days=40, rows_a_day=200)
    y = case.holdout.get_column("label").to_numpy()
    days = case.holdout.get_column("date").rank("dense").cast(int).to_numpy() - 1

    def width(blocks: np.ndarray) -> float:
        count = int(blocks.max()) + 1
        form = block_form(LOGLOSS, y, case.challenger, blocks.astype(np.intp), count)
        found = interval(estimate(form, draw_blocks(count, 200, seed=0), count), 0.95)
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(days) > 3 * width(np.arange(len(y)))


def test_pairing_makes_the_difference_sharper_than_either_model(case: HoldoutCase) -> None:
    y = case.holdout.get_column("label").to_numpy()
    blocks = (case.holdout.get_column("date").rank("dense").cast(int).to_numpy() - 1).astype(np.intp)
    counts = draw_blocks(40, 400, seed=0)
    nearly = case.challenger * 0.99
    one, other = (
        estimate(block_form(LOGLOSS, y, p, blocks, 40), counts, 40) for p in (case.challenger, nearly)
    )
    improvement = paired(one, other, higher_is_better=False)
    assert improvement.draws.std() < one.draws.std() / 10


def test_interval_holds_its_value_and_stays_in_the_range() -> None:
    # A calibration error: small, with every redraw above it.
    one = Estimate(0.01, np.linspace(0.02, 0.04, 200), blocks=30)
    found = interval(one, 0.95, lowest=0, highest=1)
    assert found.low == 0
    assert found.value == 0.01
    assert found.high is not None
    assert 0.01 + 0.03 * 1.05 > found.high > 0.03


def test_model_against_itself_has_an_interval_of_no_width() -> None:
    same = Estimate(0.5, np.random.default_rng(0).random(200), blocks=10)
    found = interval(paired(same, same, higher_is_better=True), 0.95)
    assert (found.low, found.value, found.high) == (0, 0, 0)


def test_relative_improvement_is_a_share_of_the_reference() -> None:
    challenger = Estimate(0.45, np.array([0.45, 0.40] * 100), blocks=10)
    champion = Estimate(0.50, np.array([0.50, 0.50] * 100), blocks=10)
    found = paired(challenger, champion, higher_is_better=False, relative=True)
    assert found.value == pytest.approx(0.1)
    assert found.draws[:2] == pytest.approx([0.1, 0.2])


def test_joint_intervals_are_wider_and_hold_together() -> None:
    random = np.random.default_rng(2)
    draws = random.normal(size=(14, 4000))
    estimates = [Estimate(0.0, row, blocks=1000) for row in draws]
    alone = interval(estimates[0], 0.95)
    together = joint_intervals(estimates, 0.95)
    half = np.array([one.high for one in together], dtype=np.float64)
    assert alone.high is not None
    assert (half > 1.2 * alone.high).all()
    inside = (np.abs(draws) <= half[:, None]).all(axis=0).mean()
    assert inside == pytest.approx(0.95, abs=0.01)


def test_one_infinite_redraw_leaves_a_statistic_without_interval() -> None:
    """Its width would be infinite. The intervals of the other slices stay as they are."""
    draws = np.linspace(-1, 1, 100)
    fine, infinite = Estimate(0.0, draws, 20), Estimate(0.0, np.where(draws > 0.99, -np.inf, draws), 20)
    alone, beside = joint_intervals([fine], 0.95)[0], joint_intervals([fine, infinite], 0.95)
    assert beside == [alone, Interval(0.0)]
    both = paired(infinite, infinite, higher_is_better=True)
    assert np.isnan(both.draws).sum() == 1
    assert both.value == 0


def test_undefined_redraws_are_left_out_until_they_are_too_many() -> None:
    draws = np.random.default_rng(0).normal(0.7, 0.02, 1000)
    few, many = draws.copy(), draws.copy()
    few[:40], many[:60] = np.nan, np.nan
    assert interval(Estimate(0.7, few, 20), 0.95).low is not None
    assert interval(Estimate(0.7, many, 20), 0.95) == interval(Estimate(0.7, draws, 1), 0.95)
    assert interval(Estimate(0.7, many, 20), 0.95).low is None
    assert interval(Estimate(math.nan, draws, 20), 0.95).value is None


@pytest.mark.parametrize("blocks", [5, 8, 20, 61, 400])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_widening_is_students_quantile(blocks: int, confidence: float) -> None:
    level = (1 + confidence) / 2
    student = scipy.stats.t.ppf(level, blocks - 1) / scipy.stats.norm.ppf(level)
    expected = student * math.sqrt(blocks / (blocks - 1))
    assert widening(blocks, confidence) == pytest.approx(expected, rel=0.01)

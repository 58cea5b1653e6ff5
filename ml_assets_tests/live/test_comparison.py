"""Comparison of a canary with the champion over the rows of both versions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.model.release.rules import CanarySection
from ml_assets.use.live import comparison
from ml_assets.use.live.comparison import (
    Comparison,
    Labelled,
    MetricState,
    Requests,
    compare,
    comparisons,
    worst,
)
from ml_assets.use.live.e_process import block_ends

ROWS = 3000
NO_REQUESTS = Requests(
    is_canary=np.zeros(0, dtype=bool), failed=np.zeros(0, dtype=bool), latency_ms=np.zeros(0)
)


def section(*watch: dict[str, object]) -> CanarySection:
    return CanarySection.model_validate({"share": 0.3, "by": ["tail"], "watch": watch})


def compared(
    watched: CanarySection, requests: Requests | None = None, labelled: Labelled | None = None
) -> tuple[Comparison, ...]:
    return comparisons(watched, compare(watched, (), requests, labelled))


def random() -> np.random.Generator:
    return np.random.default_rng(3)


def sides() -> np.ndarray:
    return np.random.default_rng(4).random(ROWS) < 0.3


def requests(*, errors: float = 0.01, slower_ms: float = 0.0) -> Requests:
    """Requests of which 1 % fail; the canary's fail by `errors` and take longer by `slower_ms`."""
    draw, is_canary = random(), sides()
    return Requests(
        is_canary=is_canary,
        failed=draw.random(ROWS) < np.where(is_canary, errors, 0.01),
        latency_ms=draw.exponential(3.0, ROWS) + np.where(is_canary, slower_ms, 0.0),
    )


ERRORS = {"metric": "error_rate", "no_worse_by": 0.01}
LATENCY = {"metric": "latency_ms", "no_worse_by": 2.0, "quantile": 0.9}


@pytest.mark.parametrize(
    ("watch", "served", "is_worse"),
    [
        (ERRORS, requests(), False),
        (ERRORS, requests(errors=0.1), True),
        (ERRORS, requests(errors=0.0), False),
        (LATENCY, requests(), False),
        (LATENCY, requests(slower_ms=2.0), False),
        (LATENCY, requests(slower_ms=6.0), True),
        (LATENCY, requests(slower_ms=-2.0), False),
    ],
)
def test_a_canary_with_worse_requests_is_found(
    watch: dict[str, object], served: Requests, is_worse: bool
) -> None:
    (found,) = compared(section(watch), served, None)
    assert found.is_worse == is_worse
    assert found.champion_rows > found.canary_rows > 800


def labelled(shift: float, champion_shift: float = 0.0) -> Labelled:
    """Rows with labels of 0 and 1, whose true probability each version misses by its shift."""
    draw, is_canary = random(), sides()
    right = draw.uniform(0.3, 0.6, ROWS)
    return Labelled(
        is_canary=is_canary,
        prediction=right + np.where(is_canary, shift, champion_shift),
        label=(draw.random(ROWS) < right).astype(float),
    )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("shift", "of_champion", "is_worse"),
    [
        (0.0, 0.0, False),
        (0.25, 0.0, True),
        (0.25, 0.25, False),
        (0.0, 0.25, False),
        (-0.25, 0.25, False),
        (-0.15, 0.28, False),
        (-0.29, 0.05, True),
    ],
)
def test_calibration_is_worse_if_further_from_the_rate(
    sign: int, shift: float, of_champion: float, is_worse: bool
) -> None:
    """A canary that mends the champion's shift is not worse, nor one as far from the rate on the other side."""
    watch = section({"metric": "calibration", "no_worse_by": 0.05})
    rows = labelled(sign * shift, sign * of_champion)
    (found,) = compared(watch, NO_REQUESTS, rows)
    assert found.is_worse == is_worse


@pytest.mark.parametrize(
    "watch",
    [
        {"metric": "logloss", "no_worse_by": 0.02},
        {"metric": "brier", "no_worse_by": 0.01},
        {"metric": "mae", "no_worse_by": 0.02, "largest": 1.0},
    ],
)
def test_losses_of_labelled_rows_are_compared(watch: dict[str, object]) -> None:
    (equal,) = compared(section(watch), NO_REQUESTS, labelled(0.0))
    rows = labelled(0.0)
    turned = Labelled(
        is_canary=rows.is_canary,
        prediction=np.where(rows.is_canary, np.where(rows.label == 1, 0.02, 0.98), rows.prediction),
        label=rows.label,
    )
    (worse,) = compared(section(watch), NO_REQUESTS, turned)
    assert (equal.is_worse, worse.is_worse) == (False, True)
    assert worse.canary > worse.champion


VARYING = np.random.default_rng(5).random((2, 4000)) < np.array([[0.2], [0.5]])
"""Rows of the canary, and rows on which it is far off."""


@pytest.mark.parametrize(("far", "is_worse"), [(1.0, False), (1.1, False), (1.6, True), (2.0, True)])
def test_a_canary_that_varies_more_than_the_champion_is_found(far: float, is_worse: bool) -> None:
    """The champion is always wrong by 0.5, the canary by 0 on half of its rows and by `far` on the others."""
    is_canary, is_off = VARYING
    error = np.where(is_canary, np.where(is_off, far, 0.0), 0.5)
    rows = Labelled(is_canary=is_canary, prediction=error, label=np.zeros(len(error)))
    watch = section({"metric": "mae", "no_worse_by": 0.05, "largest": 2.0})
    (found,) = compared(watch, NO_REQUESTS, rows)
    assert found.is_worse == is_worse


def test_accuracy_counts_the_largest_probability() -> None:
    is_canary, label = sides(), random().integers(0, 3, ROWS)
    answered = np.where(is_canary, (label + 1) % 3, label)
    rows = Labelled(is_canary=is_canary, prediction=np.eye(3)[answered], label=label.astype(float))
    (found,) = compared(section({"metric": "accuracy", "no_worse_by": 0.05}), NO_REQUESTS, rows)
    assert (found.canary, found.champion, found.is_worse) == (0.0, 1.0, True)


def test_an_impossible_probability_costs_the_largest_loss() -> None:
    is_canary = sides()
    rows = Labelled(is_canary=is_canary, prediction=np.zeros(ROWS), label=np.ones(ROWS))
    (found,) = compared(section({"metric": "logloss", "no_worse_by": 0.1, "largest": 4.0}), NO_REQUESTS, rows)
    assert (found.canary, found.champion) == (4.0, 4.0)


@pytest.mark.parametrize(
    "watch",
    [
        {"metric": "logloss", "no_worse_by": 0.1},
        {"metric": "brier", "no_worse_by": 0.1},
        {"metric": "mae", "no_worse_by": 0.1, "largest": 1.0},
        {"metric": "calibration", "no_worse_by": 0.1},
    ],
)
@pytest.mark.parametrize("answer", [float("nan"), float("inf"), float("-inf")])
def test_a_canary_that_answers_no_number_is_worse(watch: dict[str, object], answer: float) -> None:
    rows = labelled(0.0)
    broken = Labelled(
        is_canary=rows.is_canary,
        prediction=np.where(rows.is_canary, answer, rows.prediction),
        label=rows.label,
    )
    (found,) = compared(section(watch), NO_REQUESTS, broken)
    assert found.is_worse


def test_a_class_that_the_model_does_not_know_costs_the_largest_loss() -> None:
    is_canary = sides()
    rows = Labelled(
        is_canary=is_canary, prediction=np.full((ROWS, 2), 0.5), label=np.where(is_canary, -1.0, 1.0)
    )
    (found,) = compared(section({"metric": "logloss", "no_worse_by": 0.1}), NO_REQUESTS, rows)
    assert (found.canary, found.champion) == (5.0, pytest.approx(np.log(2)))


def test_two_metrics_share_alpha_and_the_worst_is_named() -> None:
    shown = compared(section(ERRORS, LATENCY), requests(errors=0.2))
    assert [round(np.exp(one.log_limit)) for one in shown] == [40, 40]
    found = worst(shown)
    assert found is not None
    assert found.metric == "error_rate"
    assert "error_rate: worse; canary 0." in str(found)
    assert worst(compared(section(ERRORS, LATENCY), requests(), None)) is None


def test_no_rows_are_no_evidence() -> None:
    watch = section(ERRORS, LATENCY, {"metric": "brier", "no_worse_by": 0.1})
    shown = compared(watch, NO_REQUESTS)
    assert [(one.log_e, one.canary_rows) for one in shown] == [(0.0, 0)] * 3
    assert "undecided; canary unknown on 0 entities" in str(shown[0])


def test_an_equal_canary_is_shown_to_be_no_worse() -> None:
    (few,) = compared(section(ERRORS), part_of(requests(), 0, 300))
    (enough,) = compared(section({"metric": "error_rate", "no_worse_by": 0.03}), requests())
    (worse,) = compared(section(ERRORS), requests(errors=0.1))
    assert [one.verdict for one in (few, enough, worse)] == ["undecided", "no worse", "worse"]


def part_of(whole: Requests, first: int, last: int) -> Requests:
    chosen = slice(first, last)
    return Requests(
        is_canary=whole.is_canary[chosen], failed=whole.failed[chosen], latency_ms=whole.latency_ms[chosen]
    )


EVERYTHING = section(
    ERRORS,
    LATENCY,
    {"metric": "brier", "no_worse_by": 0.02},
    {"metric": "calibration", "no_worse_by": 0.05},
)
WEIGHTS = np.random.default_rng(6).exponential(1.0, ROWS) + 0.01


def rows_of_labels(first: int, last: int) -> Labelled:
    whole, chosen = labelled(0.1), slice(first, last)
    return Labelled(
        is_canary=whole.is_canary[chosen],
        prediction=whole.prediction[chosen],
        label=whole.label[chosen],
        weight=WEIGHTS[chosen],
    )


@settings(max_examples=15)
@given(st.lists(st.integers(0, 1200), max_size=4).map(sorted))
def test_looks_at_parts_count_the_same_as_one_look(cuts: list[int]) -> None:
    """The state between the looks is stored as JSON."""
    whole = requests(slower_ms=3.0)
    states: tuple[MetricState, ...] = ()
    for first, last in zip([0, *cuts], [*cuts, 1200], strict=True):
        states = compare(EVERYTHING, states, part_of(whole, first, last), rows_of_labels(first, last))
        states = tuple(MetricState.model_validate_json(one.model_dump_json()) for one in states)
    at_once = compare(EVERYTHING, (), part_of(whole, 0, 1200), rows_of_labels(0, 1200))
    for one, other in zip(states, at_once, strict=True):
        assert (one.log_worse, one.log_fine) == pytest.approx((other.log_worse, other.log_fine), abs=1e-9)
        assert one.waiting == other.waiting
        assert (one.champion.rows, one.canary.rows) == (other.champion.rows, other.canary.rows)


@settings(max_examples=40)
@given(st.integers(1, 40), st.lists(st.integers(0, ROWS), max_size=4).map(sorted))
def test_latencies_count_alike_whatever_looks_there_were(every: int, cuts: list[int]) -> None:
    """A rare canary has blocks with more requests of the champion than latencies are kept."""
    is_canary = np.arange(ROWS) % every == 0
    latency = random().exponential(3.0, ROWS) + np.linspace(
        0, 30, ROWS
    )  # a slower block has another quantile
    whole = Requests(is_canary=is_canary, failed=np.zeros(ROWS, dtype=bool), latency_ms=latency)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "LATENCIES", 50)
        states: tuple[MetricState, ...] = ()
        for first, last in zip([0, *cuts], [*cuts, ROWS], strict=True):
            states = compare(section(LATENCY), states, part_of(whole, first, last))
        (parts, at_once) = (*states, *compare(section(LATENCY), (), whole))
    assert (parts.slow_above, parts.slow_of) == (at_once.slow_above, at_once.slow_of)
    assert parts.champion.latencies == at_once.champion.latencies
    assert parts.log_worse == pytest.approx(at_once.log_worse, abs=1e-9)
    assert parts.log_fine == pytest.approx(at_once.log_fine, abs=1e-9)


def test_a_block_is_judged_by_latencies_before_it_alone() -> None:
    """The quantile that judges the second block does not move with the champion's requests in it."""
    served = requests()
    (first_block, later) = block_ends(served.is_canary)[:2] + 1
    limits: list[float | None] = []
    for longer in (0.0, 1000.0):
        latency = served.latency_ms.copy()
        latency[first_block:later] += longer
        moved = replace(served, latency_ms=latency)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comparison, "LATENCIES", 4)
            (state,) = compare(section(LATENCY), (), part_of(moved, 0, later - 1))
            (state,) = compare(section(LATENCY), (state,), part_of(moved, later - 1, later))
        limits.append(state.slow_above)
    assert limits[0] is not None
    assert limits[0] == limits[1]


@pytest.mark.parametrize("heavy", [False, True])
def test_losses_count_by_the_weights_of_their_rows(heavy: bool) -> None:
    """The canary is wrong on a tenth of the rows. It is worse if these weigh much, and not if they weigh little."""
    draw, is_canary = random(), sides()
    is_hard = draw.random(ROWS) < 0.1
    rows = Labelled(
        is_canary=is_canary,
        prediction=np.where(is_hard & is_canary, 1.0, 0.0),
        label=np.zeros(ROWS),
        weight=np.where(is_hard, 5.0 if heavy else 0.01, 1.0),
    )
    (found,) = compared(section({"metric": "mae", "no_worse_by": 0.1, "largest": 1.0}), labelled=rows)
    assert found.is_worse == heavy
    share = 5 * 0.1 / (5 * 0.1 + 0.9) if heavy else 0.001 / 0.901
    assert found.canary == pytest.approx(share, abs=0.05)

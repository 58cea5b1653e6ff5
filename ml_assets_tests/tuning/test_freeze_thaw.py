"""Decisions of freeze_thaw: rounds at equal epochs first, then extrapolated learning curves."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.extras.tuning.freeze_thaw import next_trial, should_pause
from ml_assets.extras.tuning.learning_curves import LearningCurve, forecast

EPOCHS = 27
Losses = list[list[float]]


def _paused(losses: list[float], most_epochs: int = EPOCHS) -> LearningCurve:
    return LearningCurve(losses=tuple(losses), most_epochs=most_epochs, state="paused")


def _decays(trials: int, epochs: int) -> Losses:
    random = np.random.default_rng(trials)
    lows, aboves, rates = (
        random.uniform(0.2, 0.6, trials),
        random.uniform(0.1, 0.5, trials),
        random.uniform(1, 4, trials),
    )
    parts = zip(lows, aboves, rates, strict=True)
    return [[low + above / (epoch + rate) for epoch in range(1, epochs + 1)] for low, above, rate in parts]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 32), st.data())
def test_a_curve_is_read_at_equal_fractions_of_its_epochs(
    most: int, points: int, data: st.DataObject
) -> None:
    reached = data.draw(st.integers(1, most))
    points = min(points, most)
    curve = _paused([float(epoch) for epoch in range(1, reached + 1)], most)
    read = curve.at(points)
    assert read == [float(-(-at * most // points)) for at in range(1, len(read) + 1)]
    assert (len(read) == points) is (reached == most)
    assert all(epoch <= reached for epoch in read)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(12)), st.floats(1e-3, 1e3), st.floats(-5, 5))
def test_forecasts_do_not_depend_on_order_and_unit(order: list[int], unit: float, zero: float) -> None:
    losses = _decays(12, 5)
    plain = {number: _paused(losses[number]) for number in range(12)}
    other = {number: _paused([unit * loss + zero for loss in losses[number]]) for number in order}
    one, two = forecast(plain), forecast(other)
    for number in range(12):
        assert np.isclose(one.means[number], two.means[number], rtol=1e-4, atol=1e-4)
        assert np.isclose(one.chance(number, 0.3), two.chance(number, unit * 0.3 + zero), atol=1e-3)


def test_the_end_of_a_curve_is_foretold() -> None:
    losses = _decays(20, EPOCHS)
    curves = {number: _paused(one[:12]) for number, one in enumerate(losses)}
    expected = forecast(curves)
    for number, one in enumerate(losses):
        assert expected.chance(number, one[-1] * 1.05) > 0.95
        assert expected.chance(number, one[-1] * 0.95) < 0.05
    assert min(expected.means, key=lambda number: expected.means[number]) == int(
        np.argmin([one[-1] for one in losses])
    )


def test_a_round_compares_all_trials_at_the_same_epoch() -> None:
    """A trial that has trained longer has no lead: its loss counts as it was at the epoch that all have reached."""
    curves = {number: _paused([1.0 - 0.1 * number]) for number in range(8)}
    curves[0] = _paused([1.0, 0.2, 0.1])
    assert next_trial(curves) == 7
    running = {**curves, 7: LearningCurve(losses=(0.3, 0.3), most_epochs=EPOCHS, state="running")}
    assert next_trial(running) == 6
    assert not should_pause(running, 7)
    arrived = {**curves, 7: LearningCurve(losses=(0.3, 0.3, 0.3), most_epochs=EPOCHS, state="running")}
    assert should_pause(arrived, 7)


def test_diverged_losses_do_not_spoil_the_forecast() -> None:
    losses = _decays(8, 5)
    calm = {number: _paused(one) for number, one in enumerate(losses)}
    wild = {**calm, 8: _paused([1e30] * 5)}
    expected = forecast(wild)
    assert all(np.isfinite([*expected.means.values(), *expected.deviations.values()]))
    assert next_trial(wild) == next_trial(calm)


def test_the_study_ends_when_no_paused_trial_may_win() -> None:
    losses = _decays(20, EPOCHS)
    order = sorted(range(20), key=lambda number: losses[number][-1])
    best = LearningCurve(losses=tuple(losses[order[0]]), most_epochs=EPOCHS, state="ended")
    curves = {number: _paused(losses[number][:20]) for number in order}
    assert next_trial({**curves, order[0]: best}) is None
    second = LearningCurve(losses=tuple(losses[order[1]]), most_epochs=EPOCHS, state="ended")
    assert next_trial({**curves, order[1]: second}) == order[0]

"""An attempt gives way to a larger one only where that would be done earlier, by its own figures."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.job.events import TrainingEvent
from resources.launcher.kubernetes.output import Pace, RestartEstimate

PLACED = 1_000.0
"""Time at which the pods of these tests had their nodes, seconds since the epoch."""


def event(kind: str, step: int, after: float, **values: Any) -> TrainingEvent:
    """Return an event that comes `after` seconds after the pods had their nodes."""
    return TrainingEvent(kind=kind, step=step, time=PLACED + after, values=values)


def estimate_of(*events: TrainingEvent) -> RestartEstimate:
    """Return the estimate of the attempt that begins with the first of them."""
    began, *told = events
    pace = Pace(began)
    for one in told:
        pace.hear(one)
    estimate = pace.estimate(PLACED)
    assert estimate is not None
    return estimate


STARTED = event("started", 100, 12, steps=1100)


def test_what_is_left_is_told_by_the_steps_after_the_first_ones() -> None:
    metrics = [event("metrics", 110, 40), event("metrics", 120, 50), event("metrics", 600, 530)]
    estimate = estimate_of(STARTED, *metrics)
    assert estimate.left_seconds == pytest.approx(500)
    assert estimate.restart_seconds == 12
    assert estimate_of(STARTED, metrics[0]).left_seconds == pytest.approx(990 * 2.8)  # better than nothing


def test_a_restart_costs_what_the_first_step_and_the_last_save_took() -> None:
    told = [
        event("recovered", 101, 45, seconds=80),
        event("checkpoint", 150, 70, checkpoint_duration_ms=9000),
        event("checkpoint", 200, 99, checkpoint_duration_ms=5000),
        event("metrics", 200, 95),
    ]
    assert estimate_of(STARTED, *told).restart_seconds == pytest.approx(50)


@pytest.mark.parametrize(
    ("left", "nodes", "grown", "pays"),
    [(61, 1, 2, True), (59, 1, 2, False), (59, 1, 4, True), (119, 3, 4, False), (121, 3, 4, True)],
)
def test_growing_pays_if_it_saves_more_time_than_the_restart_costs(
    left: float, nodes: int, grown: int, pays: bool
) -> None:
    assert RestartEstimate(left_seconds=left, restart_seconds=30).pays(nodes, grown) == pays


def test_the_reason_is_told_in_seconds() -> None:
    words = RestartEstimate(left_seconds=40, restart_seconds=31.4).why_not(1, 2)
    assert re.findall(r"\d+ \w+", words) == ["40 s", "20 s", "2 pods", "31 s"]


def test_nobody_knows_before_a_step_was_told() -> None:
    assert Pace().estimate(PLACED) is None
    pace = Pace(STARTED)
    pace.hear(event("resumed", 100, 13))
    pace.hear(event("system", 100, 14))
    assert pace.estimate(PLACED) is None


def test_a_script_whose_steps_nobody_knows_grows() -> None:
    for script in (estimate_of(event("started", 0, 5, steps=0)), estimate_of(event("started", 0, 5))):
        assert script.pays(3, 4)
    unheard = Pace()  # its start was rotated away
    unheard.hear(event("metrics", 30, 70))
    estimate = unheard.estimate(PLACED)
    assert estimate is not None
    assert estimate.pays(3, 4)


@given(
    steps=st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    seconds=st.floats(0.001, 100),
    nodes=st.integers(1, 20),
    more=st.integers(1, 20),
)
def test_an_even_pace_is_found_from_any_events(
    steps: list[int], seconds: float, nodes: int, more: int
) -> None:
    """Growing pays ever less: once it does not pay, it never pays later."""
    pace, paid = Pace(event("started", 0, 0, steps=1000)), True
    for step in steps:
        pace.hear(event("metrics", step, 10 + step * seconds))
        pace.hear(event("recovered", step, 10))
        estimate = pace.estimate(PLACED)
        if estimate is None:
            continue
        pays = estimate.pays(nodes, nodes + more)
        assert paid or not pays
        paid = pays

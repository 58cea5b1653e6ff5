"""The parts of a wall time: each second has one, whatever the events say."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ml_assets.model.steps.goodput import Goodput, LaunchSpan, goodput_of
from resources.job.events import TrainingEvent
from resources.job.reserved import Reserved


def _event(kind: str, at: float, step: int = 0, **values: Any) -> TrainingEvent:
    return TrainingEvent(kind=kind, step=step, time=at, values=values)


def _held(began: float, until: float, places: int = 0) -> Reserved:
    return Reserved(
        job=f"job-{began}",
        at=until,
        began=began,
        places=places,
        place_seconds=until - began,
        cores=2,
        memory_bytes=2**30,
        gpus=1,
    )


EVICTED = [
    _event("started", 140.0, attempt=1),
    _event("metrics", 240.0, 50, data_loading_latency_ms=200.0),
    _event("checkpoint", 250.0, 50, checkpoint_duration_ms=10_000.0, blocked_ms=4000.0),
    _event("metrics", 344.0, 100, data_loading_latency_ms=200.0),
    _event("started", 520.0, 50, attempt=2),
    _event("recovered", 522.0, 51, seconds=176.0),
    _event("metrics", 620.0, 100, data_loading_latency_ms=100.0),
    _event("finished", 630.0, 100),
]
"""Training that waits 100 s for a node, loses its pod after step 100, and repeats 50 steps."""


def test_each_part_of_an_evicted_training() -> None:
    parts = goodput_of([LaunchSpan(0.0, 640.0)], [_held(100.0, 360.0), _held(500.0, 635.0)], EVICTED)
    assert parts == Goodput(
        queue=100.0 + 140.0,
        start_up=40.0 + 5.0 + 5.0,
        data_wait=10.0 + 5.0,
        compute=(244.0 - 140.0 - 10.0 - 4.0) + (110.0 - 5.0),
        checkpoint=4.0,
        lost_work=346.0 - 244.0,
        recovery=14.0 + 20.0,
    )
    assert parts.seconds == pytest.approx(640.0)
    assert parts.share == pytest.approx(195.0 / 640.0)


def test_a_training_that_runs_has_lost_nothing_yet() -> None:
    parts = goodput_of([LaunchSpan(0.0, 344.0)], [_held(100.0, 344.0, places=1)], EVICTED[:4])
    assert (parts.lost_work, parts.data_wait, parts.checkpoint) == (0.0, 20.0, 4.0)
    ended = goodput_of([LaunchSpan(0.0, 344.0)], [_held(100.0, 344.0)], EVICTED[:4])
    assert (ended.lost_work, ended.data_wait) == (100.0, 10.0)


def test_time_between_two_launches_is_not_wall_time() -> None:
    spans = [LaunchSpan(0.0, 360.0), LaunchSpan(490.0, 640.0)]
    parts = goodput_of(spans, [_held(100.0, 360.0), _held(500.0, 635.0)], EVICTED)
    assert parts.seconds == pytest.approx(360.0 + 150.0)
    assert parts.queue == 110.0


TIMES = st.floats(0, 1000)
VALUES = ("seconds", "blocked_ms", "checkpoint_duration_ms", "data_loading_latency_ms")


def _any_event(kind: str, at: float, step: int, value: float) -> TrainingEvent:
    return _event(kind, at, step, **dict.fromkeys(VALUES, value))


EVENTS = st.builds(
    _any_event,
    st.sampled_from(["started", "metrics", "checkpoint", "recovered", "finished", "ended", "failed"]),
    TIMES,
    st.integers(0, 100),
    st.floats(0, 100_000),
)


@given(
    st.lists(st.tuples(TIMES, TIMES).map(sorted), min_size=1, max_size=4),
    st.lists(st.tuples(TIMES, TIMES).map(sorted), max_size=4),
    st.lists(EVENTS, max_size=20),
)
@example([[0.0, 1.0]], [[2.0, 2.0]], [])  # the cluster began an attempt after the launcher was gone
def test_parts_sum_to_the_time_of_launches_and_reservations(
    launches: list[list[float]], held: list[list[float]], events: list[TrainingEvent]
) -> None:
    """Every second of a launch is counted, none is counted twice, and no part is negative."""
    spans = [LaunchSpan(began, until) for began, until in launches]
    parts = goodput_of(spans, [_held(began, until) for began, until in held], events)
    # Waiting inside a launch is part of it: the union of all is the most, the union of the launches the least.
    assert _union(launches) - 1e-6 <= parts.seconds <= _union([*launches, *held]) + 1e-6
    values = [parts.queue, parts.start_up, parts.data_wait, parts.compute, parts.checkpoint, parts.lost_work]
    assert min([*values, parts.recovery]) >= -1e-6


def _union(spans: list[list[float]]) -> float:
    total, until = 0.0, float("-inf")
    for began, end in sorted(spans):
        total += max(0.0, end - max(began, until))
        until = max(until, end)
    return total

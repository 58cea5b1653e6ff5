"""A worker that holds the others up is named once, in words that say by how much."""

from ml_assets.model.steps.live_report import Stragglers
from resources.job.events import TrainingEvent


def _started() -> TrainingEvent:
    return TrainingEvent("started", 0, 0.0, {"world_size": 4})


def _read(rank: int, factor: float, lag: float) -> TrainingEvent:
    figures = {
        "slowest_rank": rank,
        "slowest_rank_factor": factor,
        "slowest_rank_lag_ms": lag,
        "step_ms_p50": 50,
    }
    return TrainingEvent("metrics", 20, 0.0, figures)


def _said(*told: TrainingEvent) -> list[str | None]:
    stragglers = Stragglers()
    return [stragglers.hear(event) for event in told]


def test_a_rank_that_is_slow_three_times_in_a_row_is_named_once() -> None:
    *before, named, after = _said(_started(), *[_read(3, 2.25, 24.0)] * 4)
    assert (before, after) == ([None] * 3, None)
    assert named is not None
    assert named.startswith("straggler: rank 3 works 2.2 times as long as the others, 24 ms more a step")


def test_ranks_that_are_slow_in_turn_are_not() -> None:
    assert _said(_started(), *[_read(3, 3.0, 30.0), _read(1, 3.0, 30.0)] * 4) == [None] * 9


def test_a_small_delay_is_not() -> None:
    assert _said(*[_read(3, 9.0, 1.0)] * 4) == [None] * 4  # much of little
    assert _said(*[_read(3, 1.2, 30.0)] * 4) == [None] * 4  # little of much


def test_a_new_attempt_begins_anew() -> None:
    slow = [_read(3, 2.0, 30.0)] * 3
    assert [said is not None for said in _said(*slow, _started(), *slow)] == [
        False, False, True, False, False, False, True,
    ]  # fmt: skip

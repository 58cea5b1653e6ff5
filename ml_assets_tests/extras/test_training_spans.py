"""Spans of a training from its records: ranks that fail, and bounds of their number. Real runs: `test_traces`."""

from typing import Any

import pytest

from ml_assets.extras.traces.training_spans import training_spans
from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.usage import UsageRecord, UsedAttempt, UsedLaunch
from resources.job.events import MOST_RANKS_TOLD, TrainingEvent
from resources.job.reserved import Reserved


def recorded(attempts: int) -> UsageRecord:
    """Return the record of a launch from 0 to 10,000 s, whose attempts last 100 s each."""
    readings = [
        Reserved(
            job=f"job-{number}", began=100.0 * number, at=100.0 * number + 99, places=0,
            place_seconds=99.0, cores=1.0, memory_bytes=0, gpus=0,
        )
        for number in range(attempts)
    ]  # fmt: skip
    return UsageRecord(
        environment="test", env="", model="shop", partition="2024-01-08", fingerprint="f" * 64, goodput=Goodput(),
        launches=(UsedLaunch(id="l", run_id="r", author="ada", began=0.0, at=10_000.0, state="completed"),),
        attempts=tuple(UsedAttempt(reading=one, gpus=0, gpu="", state="lost") for one in readings),
    )  # fmt: skip


def event(kind: str, time: float, **values: Any) -> TrainingEvent:
    return TrainingEvent(kind=kind, step=0, time=time, values=values)


def started(**values: Any) -> TrainingEvent:
    return event("started", 20.0, attempt=1, **values)


def test_the_rank_that_failed_first_is_an_error_with_its_cause() -> None:
    cause = "rank 1 was killed by SIGKILL"
    events = [
        started(world_size=3, ranks_began=[11.0, 12.5, 99.0]),
        event("metrics", 50.0),
        event("ended", 60.0, code=137, rank=1, cause=cause, place=""),
    ]
    (launch,) = training_spans(recorded(1), "r", events)
    *ranks, workers = launch.parts[0].parts
    assert [(one.name, one.began, one.ended, one.error) for one in ranks] == [
        ("rank 0", 11.0, 50.0, ""),
        ("rank 1", 12.5, 50.0, cause),
        ("rank 2", 50.0, 50.0, ""),  # the clock of its machine is ahead
    ]
    assert (workers.name, workers.error) == ("workers 0 to 2", "")


def test_ranks_and_attempts_of_a_trace_are_bounded() -> None:
    events = [started(world_size=200, ranks_began=[11.0] * 200)]
    (launch,) = training_spans(recorded(1), "r", events)
    assert len(launch.parts[0].parts) == MOST_RANKS_TOLD + 1
    (launch,) = training_spans(recorded(50), "r", [])
    assert [one.name for one in launch.parts] == [f"attempt {number}" for number in range(31, 51)]


def test_a_training_of_an_earlier_release_has_no_ranks() -> None:
    (launch,) = training_spans(
        recorded(1), "r", [started(world_size=3), event("ended", 60.0, code=137, place="")]
    )
    assert [one.name for one in launch.parts[0].parts] == ["workers 0 to 2"]


@pytest.mark.parametrize("wrong", [7, [None], [-1.0], ["soon"]])
def test_damaged_ranks_are_a_value_or_type_error(wrong: Any) -> None:
    """The sensor then leaves the training out of its run's trace."""
    with pytest.raises((TypeError, ValueError)):
        training_spans(recorded(1), "r", [started(world_size=3, ranks_began=wrong)])

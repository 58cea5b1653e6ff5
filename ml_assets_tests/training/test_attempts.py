"""Worker time of each attempt, for every way to end and every process that may report the end."""

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.training.attempt.attempts import (
    ATTEMPTS,
    Attempt,
    read_attempts,
    record_attempt,
    seconds_trained,
    worker_seconds,
)
from resources.job.events import EVENTS, TrainingEvent

LONG_AGO = 1_000_000.0
"""Start of the training of these tests, seconds since the epoch."""


def write(folder: Path, attempts: list[Attempt], events: list[TrainingEvent]) -> None:
    (folder / ATTEMPTS).write_text("".join(f"{json.dumps(asdict(one))}\n" for one in attempts))
    (folder / EVENTS).write_text("".join(f"{one.to_line()}\n" for one in events))


def attempt(number: int, world_size: int, started: float) -> Attempt:
    return Attempt(number=number, from_step=0, world_size=world_size, started=LONG_AGO + started)


def event(kind: str, at: float, **values: float) -> TrainingEvent:
    return TrainingEvent(kind=kind, step=0, time=LONG_AGO + at, values=values)


THREE = [attempt(1, 8, 0), attempt(2, 4, 100), attempt(3, 6, 200)]
TOLD = [
    event("started", 1),
    event("metrics", 20),
    event("system", 30),  # the last of attempt 1, which was killed then
    event("ended", 99),  # of attempt 1, said by the agents of attempt 2
    event("started", 101),
    event("metrics", 160),
    event("ended", 161),
    event("started", 201),
    event("recovered", 205, seconds=40),  # it found that attempt 2 had lived until 165
    event("metrics", 210),
]


def test_each_attempt_counts_with_its_workers_to_its_last_sign_of_life(tmp_path: Path) -> None:
    write(tmp_path, THREE, TOLD)
    before = time.time() - LONG_AGO
    first, second, newest = seconds_trained(tmp_path)
    assert (first, second) == (30, 65)
    assert before - 200 <= newest <= time.time() - LONG_AGO - 200
    held = 8 * 30 + 4 * 65 + 6 * newest
    assert worker_seconds(tmp_path) == pytest.approx(held, abs=60)
    assert worker_seconds(tmp_path) > held


def test_an_attempt_whose_every_word_was_lost_counts_as_nothing(tmp_path: Path) -> None:
    write(tmp_path, THREE, TOLD[:3])
    assert seconds_trained(tmp_path)[:2] == [30, 0]
    (tmp_path / EVENTS).unlink()
    assert seconds_trained(tmp_path)[:2] == [0, 0]


def test_an_attempt_cut_off_by_a_full_disk_allows_another(tmp_path: Path) -> None:
    record_attempt(tmp_path, from_step=0, world_size=2)
    with (tmp_path / ATTEMPTS).open("a") as file:
        file.write('{"number": 2, "from_')
    assert record_attempt(tmp_path, from_step=7, world_size=2).number == 2
    assert [one.from_step for one in read_attempts(tmp_path)] == [0, 7]


def test_what_was_never_begun_took_nothing(tmp_path: Path) -> None:
    assert seconds_trained(tmp_path) == []
    assert worker_seconds(tmp_path) == 0


@given(told=st.permutations([*TOLD, *TOLD[:6]]))
def test_events_that_come_twice_or_late_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, told: list[TrainingEvent]
) -> None:
    """A restarted launcher reads some events again."""
    folder = tmp_path_factory.mktemp("job")
    write(folder, THREE, told)
    assert seconds_trained(folder)[:2] == [30, 65]

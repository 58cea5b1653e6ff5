"""Record of an interrupted training: cause, duration, lost steps, and that no row came twice."""

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from ml_assets.model.training.attempt.attempts import record_attempt, recovery_of
from ml_assets.model.training.data.rowlog import RowLog, count_rows
from ml_assets.model.training.telemetry import event_log
from ml_assets.model.training.telemetry.event_log import emit, keep_events
from resources.job.events import UNKNOWN_CAUSE, read_events, recoveries_of, rows_lost


@pytest.mark.parametrize(("ended", "cause"), [(True, "rank 1 was killed by SIGSEGV"), (False, UNKNOWN_CAUSE)])
def test_a_recovery_tells_cause_seconds_and_lost_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool, cause: str
) -> None:
    began = time.time()
    monkeypatch.setattr(event_log, "_file", None)
    keep_events(tmp_path)
    record_attempt(tmp_path, from_step=0, world_size=4)
    emit("started", 0, attempt=1, world_size=4)
    log = RowLog(tmp_path, attempt=1, rank=0)
    for step in range(18):
        log.write(step, np.array([step]))
    emit("metrics", 10, loss=1.0)
    if ended:
        emit("ended", 0, code=139, cause="rank 1 was killed by SIGSEGV")
        emit("ended", 0, code=76, cause="a rank of another node was lost")  # the other node, which followed
    a_minute_ago = time.time() - 60
    os.utime(tmp_path / "rows/attempt-001-rank-0.bin", (a_minute_ago, a_minute_ago))
    tell = recovery_of(tmp_path, record_attempt(tmp_path, from_step=10, world_size=2))
    tell(11)
    emit("finished", 20, rows_repeated={1: 0, 2: 0}, rows_lost=0)
    assert rows_lost(read_events(tmp_path)) == 0
    (record,) = recoveries_of(read_events(tmp_path))
    assert (record.attempt, record.cause, record.from_step, record.steps_lost) == (2, cause, 10, 8)
    assert 0 <= record.seconds <= time.time() - began  # since the newest sign of life, the event
    assert record.rows_repeated == 0
    said = record.in_words().removeprefix(f"{cause}: ")
    assert re.findall(r"\d+(?:\.\d+)?", said) == ["2", "4", "10", f"{record.seconds:.1f}", "8", "0"]
    assert said.endswith("0 rows trained twice")


def test_a_recovery_is_told_where_all_that_the_attempt_before_said_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    monkeypatch.setattr(event_log, "_file", None)
    keep_events(tmp_path)
    record_attempt(tmp_path, from_step=0, world_size=2)
    recovery_of(tmp_path, record_attempt(tmp_path, from_step=0, world_size=2))(1)
    (record,) = recoveries_of(read_events(tmp_path))
    assert (record.cause, record.steps_lost) == (UNKNOWN_CAUSE, 0)
    assert 0 <= record.seconds <= time.time() - began  # since it began to train
    assert "workers" not in record.in_words()


def test_rows_count_as_the_newest_attempt_took_them(tmp_path: Path) -> None:
    """Attempts may have different numbers of ranks."""
    for rank, rows in ((0, [0, 1]), (1, [2, 3])):
        first = RowLog(tmp_path, attempt=1, rank=rank)
        first.write(0, np.array(rows))
        first.write(1, np.array(rows) + 4)
    alone = RowLog(tmp_path, attempt=2, rank=0)
    alone.write(1, np.array([4, 5, 6, 7]))  # again, by one rank
    alone.write(2, np.arange(8))  # another epoch of two steps begins: only its first half
    count = count_rows(tmp_path, rows=8, steps_per_epoch=2)
    assert (count.repeated, count.lost) == ({1: 0, 2: 0}, 0)


def test_rows_that_come_twice_or_never_are_counted(tmp_path: Path) -> None:
    first, second = (RowLog(tmp_path, attempt=attempt, rank=0) for attempt in (1, 2))
    first.write(0, np.array([0, 1, 2, 3]))
    second.write(1, np.array([3, 4, 5]))  # 3 again; 6 and 7 never
    second.write(2, np.arange(4))
    second.write(3, np.arange(4, 8))
    count = count_rows(tmp_path, rows=8, steps_per_epoch=2)
    assert (count.repeated, count.lost) == ({1: 0, 2: 1}, 2)


def test_a_folder_without_logs_has_lost_nothing_yet(tmp_path: Path) -> None:
    count = count_rows(tmp_path, rows=8, steps_per_epoch=2)
    assert (count.repeated, count.lost) == ({}, 0)

"""A rank that is stopped or stuck is ended by its agent; one that works, or has ended itself, is left alone."""

import dataclasses
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.attempt.attempts import RankOutcome, cause_of, failed_rank
from ml_assets.model.training.process.heartbeat import HangTimeouts, Heartbeat, Seen, Watch
from ml_assets_tests.training.small_jobs import small_job
from resources.job.job import ExitCode

_RANK = """
import sys, time
from ml_assets.model.training.process.heartbeat import Heartbeat
with Heartbeat(0) as heartbeat:
    print("begun", flush=True)
    for step in range(1, 3):
        heartbeat.step(step)
        time.sleep(0.01)
    def wait_for_ever():
        time.sleep(60)
    {then}
"""


def timeouts(heartbeat: float = 60.0, stall: float = 120.0) -> HangTimeouts:
    return HangTimeouts(heartbeat_timeout_seconds=heartbeat, stall_timeout_seconds=stall)


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def _started(then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _RANK.format(then=then)]
    rank = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == "begun\n"
    return rank


def test_a_rank_that_was_stopped_is_ended_and_one_that_was_killed_is_named() -> None:
    watch = Watch(1, timeouts(heartbeat=1.0))
    with watch.watching():
        rank = _started("wait_for_ever()")
        rank.send_signal(signal.SIGSTOP)
        assert rank.wait(timeout=10) == -signal.SIGKILL
    assert all(fact in watch.ended[0] for fact in ("no sign of life", " 1."))
    assert watch.silent() == []
    other = Watch(1, timeouts())
    with other.watching():
        rank = _started("wait_for_ever()")
        rank.kill()
        rank.wait()
        assert other.silent() == [0]


def test_a_loop_that_stands_still_is_ended_and_its_log_says_where() -> None:
    watch = Watch(1, timeouts(stall=0.8))
    with watch.watching():
        rank = _started("wait_for_ever()")
        _, log = rank.communicate(timeout=10)
    assert rank.returncode == -signal.SIGKILL
    assert "finished no step for" in watch.ended[0]
    assert "in wait_for_ever" in log


def test_a_rank_that_stores_what_it_trained_or_has_ended_is_left_alone() -> None:
    watch = Watch(1, timeouts(stall=0.1))
    with watch.watching():
        rank = _started("heartbeat.rest(); time.sleep(0.6)")
        assert rank.wait(timeout=10) == 0
    assert watch.ended == {}
    assert watch.silent() == []


def test_a_loop_is_measured_by_its_longest_step() -> None:
    """The first step counts too."""
    heartbeat, seen, given = Heartbeat(0), Seen(), timeouts(heartbeat=900, stall=600)

    def why_end(at: float) -> str:
        return seen.why_end(heartbeat.done, at, at, given)

    assert not why_end(0)
    assert not why_end(5000)  # not begun yet
    heartbeat.begin()
    assert not why_end(5001)
    assert not why_end(9000)  # nobody knows yet how long it takes
    heartbeat.moved()
    assert not why_end(9001)
    assert not why_end(9001 + 39_000)
    words = (
        r"finished no step for 41000 s, its longest step before took 4000\.0 s \(stall_timeout_seconds 600\)"
    )
    assert re.match(words, why_end(9001 + 41_000))


def test_a_first_step_that_never_ends_is_found(snapshot: Snapshot) -> None:
    job = small_job(snapshot, stall_timeout_seconds=600, heartbeat_timeout_seconds=10**6)
    heartbeat, seen, given = Heartbeat(0), Seen(), HangTimeouts.of(job)

    heartbeat.begin()
    assert not seen.why_end(heartbeat.done, 0, 0, given)
    assert not seen.why_end(heartbeat.done, 8999, 8999, given)
    words = r"did not finish its model, or its first step, within 9001 s \(15 × stall_timeout_seconds 600\)"
    assert re.match(words, seen.why_end(heartbeat.done, 9001, 9001, given))


def test_a_script_may_never_tell_of_a_step(snapshot: Snapshot) -> None:
    script = dataclasses.replace(small_job(snapshot), model_function="", script="some.script")
    heartbeat, seen = Heartbeat(0), Seen()

    heartbeat.begin()
    assert not seen.why_end(heartbeat.done, 0, 0, HangTimeouts.of(script))
    assert not seen.why_end(heartbeat.done, 10**6, 10**6, HangTimeouts.of(script))


def test_a_loop_that_saves_after_each_step_is_not_stalled() -> None:
    heartbeat, seen = Heartbeat(0), Seen()
    for step in range(20):
        heartbeat.step(step)
        assert not seen.why_end(heartbeat.done, 100.0 * step, 100.0 * step, timeouts(stall=150))
        heartbeat.rest()  # and the agent does not look


@pytest.mark.parametrize(
    ("code", "hung", "killed", "words", "failed"),
    [
        (137, {1: "gave no sign of life for 3.1 s"}, [], "rank 1 gave no sign of life for 3.1 s", 1),
        (137, {}, [2], r"rank 0 was killed by SIGKILL \(the kernel", 0),
        (139, {}, [], "rank 0 was killed by SIGSEGV", 0),
        (ExitCode.PEER_LOST, {}, [1], r"rank 1 exited without a message, as by os\._exit\(0\)", 1),
        (ExitCode.PEER_LOST, {}, [], "a rank of another node was lost", None),
        (ExitCode.PREEMPTED, {}, [], r"it saved a checkpoint and stopped after SIGTERM", None),
        (1, {}, [], "rank 0 ended with exit code 1", 0),
    ],
)
def test_a_cause_names_the_rank_and_what_happened_to_it(
    code: int, hung: dict[int, str], killed: list[int], words: str, failed: int | None
) -> None:
    end = RankOutcome(rank=0, code=code)
    assert re.match(words, cause_of(end, hung, killed))
    assert failed_rank(end, hung, killed) == failed

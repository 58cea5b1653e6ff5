"""The local launcher with exit codes, cancellation and twins, with a worker that only plays its part."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ml_assets_tests.resources.launcher.scripted_jobs import job_of
from ml_assets_tests.training.small_jobs import alive
from resources.job.errors import (
    AttemptsExhausted,
    BadConfiguration,
    Diverged,
    FailedTwice,
    InputChanged,
    OutOfMemory,
    TrainingFailed,
    UnmeasuredModel,
)
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.job.reserved import RESERVED
from resources.launcher.local import LocalLauncher
from resources.launcher.protocol import pause_after

COMMAND = (sys.executable, "-m", "ml_assets_tests.resources.launcher.scripted_worker")


class Told:
    """Values that the callbacks were given."""

    def __init__(self) -> None:
        self.events: list[TrainingEvent] = []
        self.log: list[str] = []

    def run(self, job: TrainingJob, folder: Path, grace_seconds: float = 20) -> TrainingResult:
        launcher = LocalLauncher(command=COMMAND, grace_seconds=grace_seconds)
        return launcher.run(job, folder, self.events.append, self.log.append)

    def starts(self) -> int:
        return sum(event.kind == "started" for event in self.events)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("64", BadConfiguration),
        ("65", Diverged),
        ("66", InputChanged),
        ("67", OutOfMemory),
        ("68", UnmeasuredModel),
    ],
)
def test_a_final_exit_code_is_its_error_and_is_not_tried_again(
    tmp_path: Path, code: str, error: type[TrainingFailed]
) -> None:
    told = Told()
    with pytest.raises(error, match="reason of attempt 1"):
        told.run(job_of(code, "done"), tmp_path)
    assert told.starts() == 1


def test_other_ends_are_tried_again_and_preemptions_do_not_count(tmp_path: Path) -> None:
    told = Told()
    result = told.run(job_of("kill", "75", "75", "75", "1", "done"), tmp_path)
    assert result.attempts == told.starts() == 6
    ends = [line for line in told.log if line.startswith("attempt ended")]
    facts = [
        re.search(r"with (.*), (\d) of 3 .*checkpoint(?: in (\d) s: .*first step)?$", line) for line in ends
    ]
    assert [one and one.groups() for one in facts] == [
        ("signal SIGKILL", "1", None),
        ("exit code 75", "1", None),
        ("exit code 75", "1", "1"),
        ("exit code 75", "1", "2"),
        ("exit code 1", "2", None),
    ]
    assert (tmp_path / "log.txt").read_text().splitlines() == told.log


def test_an_end_without_a_result_is_a_failure(tmp_path: Path) -> None:
    """`os._exit(0)` in a model looked like success, and the launcher ended with a bare `FileNotFoundError`."""
    told = Told()
    assert told.run(job_of("0", "done"), tmp_path).attempts == 2
    assert re.search(r"code 0 .*no result: .*os\._exit", "".join(told.log))


def test_preemptions_of_attempts_that_train_are_followed_at_once(tmp_path: Path) -> None:
    told = Told()
    assert told.run(job_of("trains", "trains", "trains", "done"), tmp_path).attempts == 4
    assert not any("before its first step" in line for line in told.log)


@pytest.mark.parametrize(
    ("fruitless", "seconds"), [(0, 0), (1, 0), (2, 1), (5, 8), (10, 256), (11, 300), (9999, 300)]
)
def test_pauses_grow_up_to_five_minutes(fruitless: int, seconds: float) -> None:
    assert pause_after(fruitless) == seconds


def test_two_failures_at_the_same_place_are_final(tmp_path: Path) -> None:
    """Also if another failure, or a preemption, came between them. The next launch tries anew."""
    told = Told()
    job = job_of("fails 3", "75", "fails 4", "fails 3", "fails 3", "done", max_attempts=9)
    with pytest.raises(FailedTwice, match=r"same place, .*: 3"):
        told.run(job, tmp_path)
    assert told.starts() == 4
    assert told.run(job, tmp_path).attempts == 6


def test_an_exhausted_budget_quotes_the_last_lines(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(AttemptsExhausted, match=r"2 attempts .*code 3") as caught:
        told.run(job_of("kill", "3", "done", max_attempts=2), tmp_path)
    assert "attempt 2 does 3" in str(caught.value)
    assert str(tmp_path / "log.txt") in str(caught.value)


def test_a_finished_job_starts_no_process_unless_its_weights_are_damaged(tmp_path: Path) -> None:
    job, told = job_of("done", "done"), Told()
    first = told.run(job, tmp_path)
    assert told.run(job, tmp_path) == first
    assert told.starts() == 1
    Path(first.weights).write_bytes(b"other")
    assert told.run(job, tmp_path).attempts == 2


def test_a_script_that_has_handed_its_model_in_is_done_however_it_ends(tmp_path: Path) -> None:
    script = dataclasses.replace(job_of("late", max_attempts=1), model_function="", script="some.script")
    assert Told().run(script, tmp_path).attempts == 1


def test_twins_run_one_process_and_get_the_same_result_and_events(tmp_path: Path) -> None:
    job, twins = job_of("slow"), [Told(), Told()]
    results: list[TrainingResult] = []
    threads = [
        threading.Thread(target=lambda told=told: results.append(told.run(job, tmp_path))) for told in twins
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1]
    assert (tmp_path / "attempts").read_text() == "1"
    heard = [[one for one in told.events if one.kind != RESERVED] for told in twins]  # one launcher reserves
    assert heard[0] == heard[1]
    assert len(heard[0]) == 21
    assert sorted(len(told.log) for told in twins) == [0, 1]


def test_an_error_of_a_callback_ends_the_worker_politely(tmp_path: Path) -> None:
    pids: list[int] = []

    def cancel(event: TrainingEvent) -> None:
        if event.kind == "started":
            pids.extend(event.values["pids"])
            raise InterruptedError("cancelled")

    with pytest.raises(InterruptedError, match="cancelled"):
        LocalLauncher(command=COMMAND).run(job_of("wait", "done"), tmp_path, cancel, lambda _: None)
    assert alive(pids) == []
    assert Told().run(job_of("wait", "done"), tmp_path).attempts == 2  # the lock is free again


def test_a_worker_that_does_not_listen_is_killed_with_its_children(tmp_path: Path) -> None:
    pids: list[int] = []
    cancelled: list[float] = []

    def cancel(event: TrainingEvent) -> None:
        pids.extend(event.values.get("pids", []))
        if event.kind == "metrics":
            pids.append(event.values["pid"])
            cancelled.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalLauncher(command=COMMAND, grace_seconds=0.5).run(
            job_of("deaf"), tmp_path, cancel, lambda _: None
        )
    assert time.monotonic() - cancelled[0] < LocalLauncher().grace_seconds  # a default much longer than this
    assert len(pids) == 2
    assert _gone(pids)


def test_a_child_that_outlives_a_killed_agent_is_killed(tmp_path: Path) -> None:
    """The child writes to the log all the time."""
    told = Told()
    assert told.run(job_of("orphan", "done"), tmp_path).attempts == 2
    assert "here" in told.log
    (orphan,) = [event.values["pid"] for event in told.events if "pid" in event.values]
    assert _gone([orphan])


def test_a_worker_of_a_killed_launcher_sees_the_end_of_stdin(
    tmp_path: Path,
) -> None:
    """The worker frees the lock only then."""
    job = job_of("wait", "done")
    (tmp_path / "job.json").write_text(job.to_json())
    launcher = subprocess.Popen([sys.executable, "-c", _LAUNCH, str(tmp_path), *COMMAND])
    events = tmp_path / "events.jsonl"
    while not events.exists() or not events.read_text().endswith("\n"):
        assert launcher.poll() is None
        time.sleep(0.02)
    first = TrainingEvent.from_line(events.read_text().splitlines()[0])
    assert first is not None
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    assert Told().run(job, tmp_path).attempts == 2
    assert _gone(first.values["pids"])


_LAUNCH = """
import sys
from pathlib import Path
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher
folder = Path(sys.argv[1])
job = TrainingJob.from_json((folder / "job.json").read_text())
LocalLauncher(command=sys.argv[2:]).run(job, folder, lambda event: None, lambda line: None)
"""


def _gone(pids: list[int], seconds: float = 10) -> bool:
    """True once none of `pids` runs; children of a killed process are reaped by init, in its own time."""
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pids)

"""Work side by side: one thread leads, and whatever ends the study gives the workers of all trials time to save."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_assets.extras.tuning.trials import SideBySide, StoppedWithOthers
from resources.files import open_lock
from resources.launcher.local import TrainingPaused, run_process

SAVES = """
import signal, sys, time
def save(*_):
    open(sys.argv[1], "w").close()
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
time.sleep(600)
"""
"""Worker that saves on SIGTERM, as the ranks of a training do."""


SAVES_SLOWLY = """
import signal, sys, time
def save(*_):
    open(sys.argv[1] + ".begun", "w").close()
    time.sleep(1.5)
    open(sys.argv[1], "w").close()
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
time.sleep(600)
"""


class _Paused(TrainingPaused):
    """Raised by the pruner in the thread of a trial."""


class _Lost(Exception):
    """Failure that is not of a trial's values."""


class _Cancelled(BaseException):
    """Raised in the leader by SIGTERM, as Dagster does."""


def _begin(works: list[Callable[[], int]]) -> Callable[[], Callable[[], int] | None]:
    left: Iterator[Callable[[], int]] = iter(works)
    return lambda: next(left, None)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_results_reach_the_leader_and_no_more_work_runs_than_allowed(most: int) -> None:
    side: SideBySide[int] = SideBySide(most)
    together = threading.Barrier(most)
    said: list[tuple[int, threading.Thread]] = []

    def work(number: int) -> int:
        together.wait(60)  # passes only with `most` pieces of work at once
        side.say(lambda: said.append((number, threading.current_thread())))
        return number

    results: list[int] = []
    side.run(_begin([lambda n=n: work(n) for n in range(6)]), results.append)
    assert sorted(results) == list(range(6))
    assert sorted(number for number, _ in said) == list(range(6))
    assert {thread for _, thread in said} == {threading.current_thread()}


def test_more_work_is_asked_for_only_after_a_result() -> None:
    """Not after each message to the page: the question reads the study and the reports of all its trials."""
    side: SideBySide[int] = SideBySide(2)
    asked: list[str] = []
    works: list[Callable[[], int]] = []

    def work() -> int:
        for _ in range(5):
            side.say(lambda: asked.append("message"))
        return 1

    def next_work() -> Callable[[], int] | None:
        asked.append("next")
        return works.pop() if works else None

    works.append(work)
    side.run(next_work, lambda _: asked.append("result"))
    assert asked == ["next", "next", *["message"] * 5, "result", "next"]


@pytest.fixture
def cancelled_by_sigterm() -> Iterator[None]:
    def cancel(*_: object) -> None:
        raise _Cancelled

    before = signal.signal(signal.SIGTERM, cancel)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("how", ["signal", "failure"])
def test_the_workers_of_all_trials_save_before_the_study_ends(
    how: str, tmp_path: Path, cancelled_by_sigterm: None
) -> None:
    side: SideBySide[int] = SideBySide(3)
    training = threading.Barrier(3)
    ends: list[type[BaseException]] = []
    causes: set[type[BaseException]] = set()

    def on_line(_: str) -> None:
        training.wait(60)

    def train(number: int) -> int:
        lock = open_lock(tmp_path / f"lock-{number}")
        assert lock is not None
        command = (sys.executable, "-c", SAVES, str(tmp_path / f"saved-{number}"))
        try:
            return run_process(command, lock, 60.0, on_line)
        except BaseException as error:
            ends.append(type(error))
            causes.add(type(side.cause_of(error)))
            raise

    def end_the_study() -> int:
        training.wait(60)
        if how == "failure":
            raise _Lost
        side.say(lambda: signal.raise_signal(signal.SIGTERM))
        return 0

    works = [lambda: train(0), lambda: train(1), end_the_study]
    with pytest.raises(_Lost if how == "failure" else _Cancelled):
        side.run(_begin(works), lambda _: None)
    assert ends == [StoppedWithOthers, StoppedWithOthers]
    assert causes == {_Lost if how == "failure" else _Cancelled}
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]


class _Dropping:
    """Object whose destructor ends at the first exception, which Python drops."""

    def __init__(self, begun: threading.Event) -> None:
        self._begun = begun

    def __del__(self) -> None:
        self._begun.set()
        while True:
            time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_work_whose_interruption_python_drops_is_interrupted_again() -> None:
    """A callback of the garbage collector dropped it, and the study waited for ever."""
    side: SideBySide[int] = SideBySide(2)
    begun = threading.Event()
    ends: list[type[BaseException]] = []

    def work() -> int:
        try:
            _Dropping(begun)
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                time.sleep(0.01)
        except BaseException as error:
            ends.append(type(error))
            raise
        return 0

    def fail() -> int:
        assert begun.wait(60)
        raise _Lost

    with pytest.raises(_Lost):
        side.run(_begin([work, fail]), lambda _: None)
    assert ends == [StoppedWithOthers]


def test_a_trial_that_just_pauses_saves_although_another_one_fails(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    ends: list[type[BaseException]] = []

    def pause(_: str) -> None:
        raise _Paused

    def train() -> int:
        lock = open_lock(tmp_path / "lock")
        assert lock is not None
        try:
            return run_process((sys.executable, "-c", SAVES_SLOWLY, str(saved)), lock, 60.0, pause)
        except BaseException as error:
            ends.append(type(error))
            raise

    def fail() -> int:
        while not saved.with_suffix(".begun").exists():
            time.sleep(0.01)
        raise _Lost

    with pytest.raises(_Lost):
        SideBySide[int](2).run(_begin([train, fail]), lambda _: None)
    assert saved.exists()
    assert ends == [_Paused]


def test_a_single_trial_that_just_pauses_saves_although_it_is_cancelled(
    tmp_path: Path, cancelled_by_sigterm: None
) -> None:
    """As by Ctrl-C: the interruption ends the study after the workers have saved."""
    saved = tmp_path / "saved"
    lock = open_lock(tmp_path / "lock")
    assert lock is not None
    leader = threading.get_ident()

    def cancel() -> None:
        while not saved.with_suffix(".begun").exists():
            time.sleep(0.01)
        signal.pthread_kill(leader, signal.SIGTERM)

    def pause(_: str) -> None:
        raise _Paused

    def train() -> int:
        return run_process((sys.executable, "-c", SAVES_SLOWLY, str(saved)), lock, 60.0, pause)

    person = threading.Thread(target=cancel)
    person.start()
    with pytest.raises(_Cancelled):
        SideBySide[int](1).run(_begin([train]), lambda _: None)
    person.join()
    assert saved.exists()

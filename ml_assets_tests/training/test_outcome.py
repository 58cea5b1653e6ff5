"""One machine reports the exit code of its ranks that explains the others."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets.model.training.attempt.attempts import explaining, forget_codes, leave_code
from ml_assets.model.training.attempt.exit_code import exit_code_of
from ml_assets.model.training.process.group import is_lost_peer
from resources.job.job import ExitCode


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def leave(monkeypatch: pytest.MonkeyPatch, *codes: tuple[int, int]) -> None:
    """Codes of local ranks, in the order in which they were left."""
    for rank, code in codes:
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        leave_code(code)


LOST, KILLED, UNKNOWN = ExitCode.PEER_LOST, 137, 1


@pytest.mark.parametrize(
    ("left", "noticed", "expected"),
    [
        ([(1, ExitCode.OUT_OF_MEMORY), (0, LOST)], {0: LOST}, (1, ExitCode.OUT_OF_MEMORY)),
        ([(0, LOST), (1, ExitCode.DIVERGED)], {0: LOST}, (1, ExitCode.DIVERGED)),
        ([(1, ExitCode.BAD_CONFIGURATION), (2, ExitCode.DIVERGED)], {2: 65}, (1, 64)),
        ([(2, UNKNOWN), (0, LOST)], {0: LOST}, (2, UNKNOWN)),
        ([(2, UNKNOWN), (0, UNKNOWN)], {0: UNKNOWN, 2: UNKNOWN}, (2, UNKNOWN)),
        ([(0, UNKNOWN)], {0: UNKNOWN, 1: KILLED}, (1, KILLED)),
        ([(0, LOST)], {1: KILLED}, (1, KILLED)),
        ([(0, LOST)], {0: LOST}, (0, LOST)),
        ([(0, ExitCode.DONE), (1, UNKNOWN)], {1: UNKNOWN}, (1, UNKNOWN)),
        ([(0, ExitCode.DONE)], {0: KILLED}, (0, KILLED)),
        ([(0, ExitCode.PREEMPTED), (1, LOST)], {1: LOST}, (1, LOST)),
        ([], {0: KILLED}, (0, KILLED)),
    ],
)
def test_the_code_that_explains_the_others_is_found(
    monkeypatch: pytest.MonkeyPatch,
    left: list[tuple[int, int]],
    noticed: dict[int, int],
    expected: tuple[int, int],
) -> None:
    leave(monkeypatch, *left)
    end = explaining(range(3), noticed)
    assert (end.rank, end.code) == expected


def test_codes_of_an_earlier_attempt_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, (0, ExitCode.DIVERGED))
    forget_codes(range(3))
    assert explaining(range(3), {1: KILLED}).code == KILLED


def test_a_rank_leaves_the_last_lines_of_what_it_raised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> int:
        raise ZeroDivisionError("in a batch")

    monkeypatch.setenv("LOCAL_RANK", "1")
    assert exit_code_of(fail, tmp_path, lambda: 7) == UNKNOWN
    end = explaining(range(2), {1: UNKNOWN})
    assert end.said[-1] == "ZeroDivisionError: in a batch"
    assert any("in fail" in line for line in end.said)


def test_an_error_raised_while_a_lost_peer_is_handled_is_of_that_peer() -> None:
    lost, stopped = RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1"), ValueError("stopped")
    assert not is_lost_peer(stopped)
    stopped.__context__ = lost  # as where a library raises its own error in `except`
    assert is_lost_peer(stopped)

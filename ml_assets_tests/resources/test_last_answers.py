"""Last answers on disk: used while a server is away, always said, and never replaced by older ones."""

import json
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.web.last_answers import Answer, LastAnswers


class Said(Answer):
    """Answer of the tests."""

    version: int


class Log:
    """A log whose newest row is its answer, until it is away."""

    def __init__(self) -> None:
        self.place, self.is_away = 1, False

    def read(self, now: datetime) -> Said:
        if self.is_away:
            raise ConnectionError("nobody answers")
        return Said(read_at=now, place=self.place, version=self.place * 10)


@pytest.fixture
def log() -> Log:
    return Log()


def _answers(folder: Path, server: str = "the log") -> LastAnswers:
    return LastAnswers(folder, server, (ConnectionError,), patience_seconds=0.1)


def test_an_answer_of_a_server_that_is_away_says_its_age(tmp_path: Path, log: Log) -> None:
    fresh = _answers(tmp_path).ask("m", Said, log.read)
    assert (fresh.version, fresh.stale) == (10, "")
    log.is_away = True
    stale = _answers(tmp_path).ask("m", Said, log.read)  # another process
    assert (stale.version, stale.read_at) == (10, fresh.read_at)
    assert f"s ago, at {fresh.read_at:%Y-%m-%d %H:%M:%S} UTC, because nobody answers" in stale.stale


def test_a_server_that_is_back_answers_again(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resources.web.last_answers.AGAIN_SECONDS", 0.0)
    answers = _answers(tmp_path)
    answers.ask("m", Said, log.read)
    log.is_away = True
    assert answers.ask("m", Said, log.read).stale
    log.is_away, log.place = False, 2
    assert (answers.ask("m", Said, log.read).version, answers.ask("m", Said, log.read).stale) == (20, "")


def test_without_a_last_answer_the_error_stays(tmp_path: Path, log: Log) -> None:
    _answers(tmp_path).ask("m", Said, log.read)
    log.is_away = True
    for answers, name in ((_answers(tmp_path), "another"), (_answers(tmp_path, "another log"), "m")):
        with pytest.raises(ConnectionError):
            answers.ask(name, Said, log.read)


def test_an_error_of_a_server_that_answers_is_not_hidden(tmp_path: Path, log: Log) -> None:
    answers = _answers(tmp_path)
    answers.ask("m", Said, log.read)

    def refuse(now: datetime) -> Said:
        raise ValueError("a changed row")

    with pytest.raises(ValueError, match="a changed row"):
        answers.ask("m", Said, refuse)


def test_half_a_file_is_no_answer(tmp_path: Path, log: Log) -> None:
    _answers(tmp_path).ask("m", Said, log.read)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(path.read_bytes()[:20])
    log.is_away = True
    with pytest.raises(ConnectionError):
        _answers(tmp_path).ask("m", Said, log.read)


def test_a_folder_that_cannot_be_written_costs_only_the_next_process(
    tmp_path: Path, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    answers = _answers(tmp_path / "file")
    assert answers.ask("m", Said, log.read).version == 10
    assert "kept in memory alone" in caplog.text
    log.is_away = True
    assert answers.ask("m", Said, log.read).stale


def test_a_slow_reader_gets_the_newer_answer_of_another(tmp_path: Path, log: Log) -> None:
    _answers(tmp_path).ask("m", Said, log.read)

    def slow(now: datetime) -> Said:
        before = log.read(now)
        log.place = 2
        assert _answers(tmp_path).ask("m", Said, log.read).version == 20
        return before

    assert _answers(tmp_path).ask("m", Said, slow).version == 20
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["place"] == 2


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(days=30)])
def test_an_answer_stored_while_the_clock_was_ahead_is_replaced(
    tmp_path: Path, place: int, ahead: timedelta
) -> None:
    """Answers about a version's number have no place in a log."""

    def said(version: int, ahead: timedelta) -> int:
        def read(now: datetime) -> Said:
            return Said(read_at=now + ahead, place=place, version=version)

        return _answers(tmp_path).ask("m", Said, read).version

    assert [said(1, ahead), said(2, timedelta(0))] == [1, 2]

    def away(now: datetime) -> Said:
        raise ConnectionError("nobody answers")

    assert _answers(tmp_path).ask("m", Said, away).version == 2


def test_a_log_that_lost_rows_counts_and_is_reported(
    tmp_path: Path, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.place = 7
    answers = _answers(tmp_path)
    answers.ask("m", Said, log.read)
    log.place = 5
    assert answers.ask("m", Said, log.read).version == 50
    assert re.search(r"row 5, .*row 7 ", caplog.text)
    log.is_away = True
    assert _answers(tmp_path).ask("m", Said, log.read).version == 50


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_reads_of_a_growing_log_that_end_in_any_order_never_go_back(reads: list[tuple[int, int]]) -> None:
    """A read begins, sees the log at a later moment, and is kept later still. The log grows by a row each second."""
    start, kept = datetime(2026, 1, 1, tzinfo=UTC), None
    turns: list[tuple[int, int]] = []  # when an answer was kept, and its turn
    for begins, lasts in sorted(reads, key=lambda one: one[0] + one[1]):
        end = begins + lasts
        answer = Said(
            read_at=start + timedelta(seconds=begins),
            turn=len(turns) + 1,
            after=max((turn for kept_at, turn in turns if kept_at <= begins), default=0),
            place=(begins + end) // 2,
            version=0,
        )
        turns.append((end, answer.turn))
        if kept is None or answer.is_newer_than(kept):
            assert kept is None or answer.place >= kept.place
            kept = answer


def test_readers_at_once_never_see_an_older_answer_than_before(tmp_path: Path, log: Log) -> None:
    failed: list[tuple[int, int]] = []

    def read() -> None:
        answers, seen = _answers(tmp_path), 0
        for _ in range(60):
            found = answers.ask("m", Said, log.read).place
            if found < seen:
                failed.append((seen, found))
            seen = found

    readers = [threading.Thread(target=read) for _ in range(4)]
    for one in readers:
        one.start()
    while any(one.is_alive() for one in readers):
        log.place += 1
    assert failed == []

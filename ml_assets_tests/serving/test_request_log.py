"""Log of requests: complete, bounded, never in the way, and readable by day."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.use.serving.request_log import (
    SCHEMA,
    LoggedRow,
    RequestLog,
    day_folder,
    files_after,
    read_requests,
    writer_of,
)
from resources.artifacts import ArtifactsUnavailable, FolderArtifacts

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
DAY = date(2026, 11, 23)


def _row(number: int = 0, **changes: object) -> LoggedRow:
    logged = {
        "request_id": f"{number:08d}",
        "place": 0,
        "at_us": int(NOON.timestamp() * 1e6) + number,
        "model": "small",
        "version": 3,
        "bundle_digest": "b" * 64,
        "role": "production",
        "assigned": "production",
        "request_rows": 1,
        "entity": None,
        "row": b'{"hour":5}',
        "prediction": [0.25],
        "latency_us": 812,
    }
    return LoggedRow(**{**logged, **changes})


class _AwayThenBack(FolderArtifacts):
    """Artifacts whose server is away until `is_back` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_back = threading.Event()
        self.was_tried = threading.Event()

    @contextmanager
    def create(self, name: str, file: str) -> Generator[IO[bytes]]:
        self.was_tried.set()
        if not self.is_back.is_set():
            raise ArtifactsUnavailable("the store is away")
        with super().create(name, file) as stream:
            yield stream


def test_each_row_is_read_back_as_it_was_logged(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    rows = [
        _row(0, entity='["N1"]', row='{"tail":"Ünited"}'.encode()),
        _row(1, prediction=[0.1, 0.9], role="canary"),
        _row(2, prediction=None, error="InputRefused: column 'hour' is missing"),
    ]
    with RequestLog(artifacts) as log:
        log.add(rows)
    frame = read_requests(artifacts, "small", DAY)
    assert dict(frame.schema) == SCHEMA
    assert frame["at"].to_list() == [NOON + timedelta(microseconds=i) for i in range(3)]
    assert frame["row"].to_list() == ['{"tail":"Ünited"}', '{"hour":5}', '{"hour":5}']
    assert frame["prediction"].to_list() == [[0.25], [0.1, 0.9], None]
    assert frame["role"].to_list() == ["production", "canary", "production"]
    assert frame["entity"].to_list() == ['["N1"]', None, None]
    assert frame["error"].to_list()[2] == "InputRefused: column 'hour' is missing"
    assert log.written == 3


def test_models_and_days_have_files_of_their_own(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    next_day = int((NOON + timedelta(days=1)).timestamp() * 1e6)
    with RequestLog(artifacts) as log:
        log.add([_row(0), _row(1, model="other"), _row(2, at_us=next_day)])
    with RequestLog(artifacts) as log:  # another server
        log.add([_row(3)])
    assert read_requests(artifacts, "small", DAY)["request_id"].to_list() == ["00000000", "00000003"]
    assert read_requests(artifacts, "other", DAY).height == 1
    assert read_requests(artifacts, "small", DAY + timedelta(days=1)).height == 1
    assert read_requests(artifacts, "small", DAY - timedelta(days=1)).equals(pl.DataFrame(schema=SCHEMA))


def test_a_full_chunk_is_written_at_once(tmp_path: Path) -> None:
    artifacts = _AwayThenBack(tmp_path)
    artifacts.is_back.set()
    with RequestLog(artifacts, chunk_rows=10, chunk_seconds=86_400) as log:
        log.add(_row(i) for i in range(10))
        assert artifacts.was_tried.wait(200)


def test_rows_wait_for_the_store_up_to_the_bound_then_are_dropped(tmp_path: Path) -> None:
    """A store that is away costs rows, never a request."""
    artifacts = _AwayThenBack(tmp_path)
    with RequestLog(artifacts, max_bytes=10_000, chunk_rows=4, chunk_seconds=86_400) as log:
        log.add(_row(i) for i in range(100))
        assert artifacts.was_tried.wait(200)
        log.add(_row(i) for i in range(100, 200))
        artifacts.is_back.set()
    kept = read_requests(artifacts, "small", DAY)["request_id"].to_list()
    assert kept == [f"{i:08d}" for i in range(len(kept))]
    assert 5 < len(kept) <= 10_000 // 600
    assert (log.written, log.dropped, log.problem) == (len(kept), 200 - len(kept), "")


def test_rows_that_could_not_be_written_at_the_end_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RequestLog(_AwayThenBack(tmp_path)) as log:
        log.add([_row(0)])
    assert (log.written, log.problem) == (0, "the store is away")
    assert "1 rows of the request log are lost: the store is away" in caplog.text


class _Odd(_AwayThenBack):
    """Artifacts whose client library raises an error of its own until `is_back` is set."""

    @contextmanager
    def create(self, name: str, file: str) -> Generator[IO[bytes]]:
        if not self.is_back.is_set():
            self.was_tried.set()
            raise RuntimeError("the client library is broken")
        with super().create(name, file) as stream:
            yield stream


def test_an_unexpected_error_drops_its_rows_and_the_log_goes_on(tmp_path: Path) -> None:
    artifacts = _Odd(tmp_path)
    with RequestLog(artifacts, chunk_rows=1, chunk_seconds=0.01) as log:
        log.add([_row(0)])
        assert artifacts.was_tried.wait(200)
        while not log.dropped:
            time.sleep(0.005)
        assert log.problem == "1 rows were dropped: RuntimeError: the client library is broken"
        artifacts.is_back.set()
        log.add([_row(1)])
    assert (log.written, log.dropped) == (1, 1)
    assert read_requests(artifacts, "small", DAY)["request_id"].to_list() == ["00000001"]


def test_the_memory_of_entities_and_errors_is_bounded_too(tmp_path: Path) -> None:
    log = RequestLog(FolderArtifacts(tmp_path), max_bytes=100_000)
    log.add(_row(i, entity="é" * 10_000) for i in range(20))
    assert log.dropped > 10
    other = RequestLog(FolderArtifacts(tmp_path), max_bytes=100_000)
    other.add(_row(i, error="x" * 10_000) for i in range(20))
    assert other.dropped > 10


def test_rows_are_made_while_others_can_add_theirs(tmp_path: Path) -> None:
    """The JSON of a large request takes milliseconds, and other requests must not wait for it."""
    log = RequestLog(FolderArtifacts(tmp_path))
    is_added = threading.Event()

    def other() -> None:
        log.add([_row(1)])
        is_added.set()

    def rows() -> Generator[LoggedRow]:
        threading.Thread(target=other, daemon=True).start()
        assert is_added.wait(20)
        yield _row(0)

    log.add(rows())


@given(st.floats(0, 1), st.integers(0, 10**9))
def test_a_larger_share_logs_the_same_requests_and_more(share: float, number: int) -> None:
    artifacts = FolderArtifacts(Path("/nonexistent"))
    request = f"{number:x}"
    if RequestLog(artifacts, share=share / 2).wants(request):
        assert RequestLog(artifacts, share=share).wants(request)
    assert RequestLog(artifacts, share=1.0).wants(request)
    assert not RequestLog(artifacts, share=0.0).wants(request)


def test_the_logged_share_holds(tmp_path: Path) -> None:
    log = RequestLog(FolderArtifacts(tmp_path), share=0.25)
    assert 2_284 < sum(log.wants(f"{i:x}") for i in range(10_000)) < 2_716


def test_files_that_were_read_are_not_listed_again(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    for _ in range(2):  # two servers
        with RequestLog(artifacts, chunk_rows=1) as log:
            log.add([_row(0)])
    first, second = files_after(artifacts, "small", DAY, {})
    assert files_after(artifacts, "small", DAY, dict([writer_of(first)])) == [second]
    assert files_after(artifacts, "small", DAY, dict([writer_of(first), writer_of(second)])) == []


def test_the_files_lie_in_a_folder_for_each_day(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    with RequestLog(artifacts) as log:
        log.add([_row(0)])
    assert [path.parent.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet")] == [
        Path("serving/small/2026-11-23")
    ]
    assert day_folder("small", DAY) == "serving/small/2026-11-23"

"""Deletion of old days of the log: never what somebody still needs, by several servers at once, and counted."""

import threading
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.use.serving.log_retention import DayRead, LogBounds, choose, mark_read
from ml_assets.use.serving.request_log import LATE_DAYS, LoggedRow, RequestLog, day_folder, days_of
from ml_assets.use.serving.server import ServerSettings
from ml_assets.use.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve
from resources.artifacts import ArtifactsUnavailable, FolderArtifacts
from resources.ledger import Ledger, LedgerUnavailable, Person

TODAY = date(2026, 11, 23)
SHARE = CanaryShare(share=0.5, by=("carrier",))


def _log(artifacts: FolderArtifacts, *ages: int, before: date | None = None) -> None:
    """Log a request on days that are so many days old."""
    for age in ages:
        day = (before or datetime.now(UTC).date()) - timedelta(age)
        at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        row = LoggedRow(
            request_id=f"{age:08d}",
            place=0,
            at_us=int(at.timestamp() * 1e6),
            model=MODEL,
            version=1,
            bundle_digest="b" * 64,
            role="production",
            assigned="production",
            request_rows=1,
            entity=None,
            row=b"{}",
            prediction=[0.5],
            latency_us=1,
        )
        with RequestLog(artifacts) as log:
            log.add([row])


def _ages(artifacts: FolderArtifacts) -> list[int]:
    return sorted((datetime.now(UTC).date() - day).days for day in days_of(artifacts, MODEL))


@given(
    st.dictionaries(st.integers(0, 40), st.integers(1, 100), max_size=12),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 500),
    st.sets(st.integers(0, 40)),
)
def test_bounds_hold_but_for_days_that_somebody_needs(
    ages: Mapping[int, int], keep: int | None, most: int | None, needed: set[int]
) -> None:
    sizes = {TODAY - timedelta(age): size for age, size in ages.items()}
    why = {TODAY - timedelta(age): "needed" for age in needed}
    chosen = choose(sizes, LogBounds(keep_days=keep, most_bytes=most), TODAY, lambda day: why.get(day, ""))
    assert not {TODAY, *why} & set(chosen.gone)
    left = {day: size for day, size in sizes.items() if day not in chosen.gone}
    free = [day for day in left if day != TODAY and day not in why]
    assert keep is None or all(day >= TODAY - timedelta(keep) for day in free)
    assert most is None or not free or sum(left.values()) <= most
    if not chosen.kept:
        assert most is None or sum(left.values()) <= most
    # No day goes that both bounds allow.
    for day in chosen.gone:
        is_old = keep is not None and day < TODAY - timedelta(keep)
        before = sum(left.values()) + sum(sizes[other] for other in chosen.gone if other >= day)
        assert is_old or (most is not None and before > most)


def test_a_server_deletes_old_days_and_counts_them(serve: Serve, log_artifacts: FolderArtifacts) -> None:
    _log(log_artifacts, 0, 1, 2, 3, 4, 4)
    (log_artifacts.folder(f"serving/{MODEL}/not-a-day") / "notes.txt").write_text("of a person")
    serving = serve(bounds=LogBounds(keep_days=2))
    serving.parts.retention.look()
    assert _ages(log_artifacts) == [0, 1, 2]
    assert log_artifacts.exists(f"serving/{MODEL}/not-a-day", "notes.txt")
    assert serving.metric("log_deleted_files_total", model=MODEL) == 3
    assert serving.metric("log_deleted_bytes_total", model=MODEL) > 0
    assert serving.metric("log_above_bounds", model=MODEL) == 0
    serving.parts.retention.look()
    assert serving.metric("log_deleted_files_total", model=MODEL) == 3


def test_the_oldest_days_go_until_the_size_fits(serve: Serve, log_artifacts: FolderArtifacts) -> None:
    _log(log_artifacts, 0, 1, 2, 3)
    of_day = max(sum(files.values()) for files in days_of(log_artifacts, MODEL).values())
    serving = serve(bounds=LogBounds(keep_days=None, most_bytes=2 * of_day))
    serving.parts.retention.look()
    assert _ages(log_artifacts) == [0, 1]


def test_nothing_that_a_canary_may_count_is_deleted(serve: Serve, log_artifacts: FolderArtifacts) -> None:
    """As soon as it is a canary no more, its days go."""
    serving = serve(canary=SHARE, bounds=LogBounds(keep_days=None, most_bytes=1))
    promoted = serving.promote(2, "canary")
    after = promoted.at + timedelta(days=5)
    _log(
        log_artifacts, *range(8), before=after.date()
    )  # two days before the promotion, its day, and five after it
    look = serving.parts.retention.look
    look(after)
    first = promoted.at.date()
    assert list(days_of(log_artifacts, MODEL)) == [first + timedelta(n) for n in range(6)]
    said = serving.client.get("/ready").json()["log"]["above_bounds"][MODEL]
    assert "the watch of canary version 2 may not have counted them" in said
    assert serving.metric("log_above_bounds", model=MODEL) == 1
    late = promoted.at + timedelta(days=LATE_DAYS + 3)
    look(late)  # the watch does not count files that are so late
    assert min(days_of(log_artifacts, MODEL)) == first + timedelta(3)
    serving.ledger.models.demote(promoted, by=Person.unchecked("ada"), reason="for the test")
    serving.parts.watch.refresh()
    look(late)
    assert days_of(log_artifacts, MODEL) == {}


def test_nothing_that_live_performance_has_not_read_is_deleted(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """A file that a server writes late needs another measurement."""
    _log(log_artifacts, 5, 5, 6)
    sixth, fifth = days_of(log_artifacts, MODEL)

    def partitions(day: date) -> list[str]:
        return ["the week"] if day == fifth else []

    serving = serve(bounds=LogBounds(keep_days=1), live_partitions=partitions)
    look = serving.parts.retention.look
    look()
    assert _ages(log_artifacts) == [5]
    assert "live performance has not read them" in serving.parts.retention.kept[MODEL]
    read = {fifth.isoformat(): DayRead.of(days_of(log_artifacts, MODEL)[fifth])}
    _log(log_artifacts, 5)
    mark_read(log_artifacts, MODEL, "the week", read)
    look()
    assert len(days_of(log_artifacts, MODEL)[fifth]) == 3
    read = {fifth.isoformat(): DayRead.of(days_of(log_artifacts, MODEL)[fifth])}
    mark_read(log_artifacts, MODEL, "the week", read)
    look()
    assert sixth not in days_of(log_artifacts, MODEL)
    assert _ages(log_artifacts) == []


def test_nothing_is_deleted_while_the_ledger_is_away(
    serve: Serve, log_artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have promoted a canary meanwhile."""
    serving = serve(bounds=LogBounds(keep_days=1))
    serving.parts.retention.look()

    def away(*_: object) -> None:
        raise LedgerUnavailable("the ledger does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(serving.ledger.models), "stage_changes", away)
        patched.setattr("resources.web.last_answers.AGAIN_SECONDS", 0)
        serving.parts.watch.refresh()
        _log(log_artifacts, 5)
        serving.parts.retention.look()
    assert _ages(log_artifacts) == [5]
    assert "the ledger cannot be read" in serving.parts.retention.kept[MODEL]
    serving.parts.watch.refresh()
    serving.parts.retention.look()
    assert _ages(log_artifacts) == []


def test_a_deletion_that_breaks_off_is_finished_by_the_next_look(
    serve: Serve, log_artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a reader that has a file open keeps it to its end."""
    _log(log_artifacts, 9, 9, 8)
    day = next(iter(days_of(log_artifacts, MODEL)))
    file = next(iter(days_of(log_artifacts, MODEL)[day]))
    remove = FolderArtifacts.remove

    def breaks_off(self: FolderArtifacts, name: str, files: list[str]) -> None:
        remove(self, name, files[:1])
        raise ArtifactsUnavailable("the store is away")

    with (log_artifacts.folder(day_folder(MODEL, day)) / file).open("rb") as held:
        with monkeypatch.context() as patched:
            patched.setattr(FolderArtifacts, "remove", breaks_off)
            serving = serve(bounds=LogBounds(keep_days=1))
            serving.parts.retention.look()
            assert "the store is away" in serving.parts.retention.kept[MODEL]
        serving.parts.retention.look()
        assert held.read(4) == b"PAR1"
    assert days_of(log_artifacts, MODEL) == {}
    assert serving.parts.retention.kept[MODEL] == ""


def test_servers_that_delete_the_same_days_do_not_disturb_each_other(
    serve: Serve, log_artifacts: FolderArtifacts, tmp_path: Path
) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/shared.db")
    servers = [serve(ledger=ledger, bounds=LogBounds(keep_days=1)) for _ in range(3)]
    for _ in range(5):
        _log(log_artifacts, 0, *range(2, 9))
        threads = [threading.Thread(target=one.parts.retention.look) for one in servers]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert _ages(log_artifacts) == [0]
        assert [one.parts.retention.kept[MODEL] for one in servers] == [""] * 3


def test_bounds_of_zero_keep_everything(serve: Serve, log_artifacts: FolderArtifacts) -> None:
    _log(log_artifacts, 0, 1_000)
    serving = serve(bounds=ServerSettings(log_keep_days=0).log_bounds)
    serving.parts.retention.look()
    assert _ages(log_artifacts) == [0, 1_000]
    assert ServerSettings().log_bounds == LogBounds(keep_days=90, most_bytes=None)
    assert ServerSettings(log_max_gib=0.5).log_bounds.most_bytes == 2**29

"""Record of a canary's watch: what became visible counts once, in that order, whatever ends a look."""

import resource
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.release.rules import CanarySection
from ml_assets.use.live import canary_record
from ml_assets.use.live.canary_record import (
    CanaryRecord,
    FoundLabels,
    RecordPlace,
    WaitingRow,
    look,
    with_room,
)
from ml_assets.use.live.comparison import Labelled, comparisons
from ml_assets.use.serving.request_log import LoggedRow, RequestLog
from resources.artifacts import Artifacts, ArtifactsRefused, ArtifactsUnavailable, FolderArtifacts
from resources.ledger import Person, Promotion

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
ERRORS = {"metric": "error_rate", "no_worse_by": 0.02}
BRIER = {"metric": "brier", "no_worse_by": 0.02}
KEY = ("id",)


def promotion(alias: str, place: int) -> Promotion:
    return Promotion(
        place=place,
        model="small",
        version=str(place),
        alias=alias,
        bundle_digest=alias[0] * 64,
        evaluation_digest="e" * 64,
        by=Person.unchecked("ada"),
        reason="for the test",
        despite="",
        returns_to=None,
        at=NOON,
    )


def place_of(artifacts: Artifacts, *watch: dict[str, object]) -> RecordPlace:
    section = CanarySection.model_validate({"share": 0.5, "by": ["id"], "watch": watch or (ERRORS,)})
    return RecordPlace(
        artifacts=artifacts,
        model="small",
        champion=promotion("production", 1),
        canary=promotion("canary", 2),
        section=section,
    )


def log(artifacts: Artifacts, first: int, last: int, *, failed: bool = False, **fields: Any) -> None:
    """Write the requests of further entities as another server; every second one is the canary's."""
    with RequestLog(artifacts) as writing:
        writing.add(
            LoggedRow(
                request_id=f"{number:08d}",
                place=0,
                at_us=int(NOON.timestamp() * 1e6) + number,
                model="small",
                version=2 if number % 2 else 1,
                bundle_digest=("c" if number % 2 else "p") * 64,
                role="canary" if number % 2 else "production",
                assigned="canary" if number % 2 else "production",
                request_rows=1,
                entity=f'["{number}"]',
                row=b'{"id":%d}' % number,
                prediction=[0.5],
                latency_us=1000,
                error="RuntimeError: lost" if failed and number % 2 else None,
                **fields,
            )
            for number in range(first, last)
        )


def no_labels(record: CanaryRecord) -> None:
    return None


def evidence_of(place: RecordPlace, record: CanaryRecord) -> list[tuple[int, int, float]]:
    return [
        (one.canary_rows, one.champion_rows, one.log_e) for one in comparisons(place.section, record.metrics)
    ]


def test_a_look_counts_only_what_became_visible_since(tmp_path: Path) -> None:
    place = place_of(FolderArtifacts(tmp_path))
    log(place.artifacts, 0, 100, failed=True)
    first = look(place, (), no_labels, NOON)
    assert evidence_of(place, first)[0][:2] == (50, 50)
    assert look(place, (), no_labels, NOON) == first == place.read()
    log(place.artifacts, 100, 160)
    assert evidence_of(place, look(place, (), no_labels, NOON))[0][:2] == (80, 80)


def test_a_damaged_record_is_named_and_counted_again_without_it(tmp_path: Path) -> None:
    """The sensor failed at each tick, and no promotion could say why."""
    artifacts = FolderArtifacts(tmp_path)
    place = place_of(artifacts)
    log(artifacts, 0, 100, failed=True)
    first = look(place, (), no_labels, NOON)
    (file,) = artifacts.folder(place.folder).glob("*.json")
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(
        ArtifactsRefused, match=rf"{file.name} is no record of a canary: restore it, or remove it"
    ):
        look(place, (), no_labels, NOON)
    file.unlink()
    assert look(place, (), no_labels, NOON) == first


def test_a_late_file_counts_after_the_rows_of_earlier_looks(tmp_path: Path) -> None:
    """A server that writes an hour late must not change what was seen: its rows would be put among the earlier ones."""
    late, begun = (place_of(FolderArtifacts(tmp_path / name)) for name in ("late", "begun"))
    log(late.artifacts, 1000, 1192, failed=True)  # 192 rows are six full blocks
    log(begun.artifacts, 1000, 1192, failed=True)
    shown = evidence_of(begun, look(begun, (), no_labels, NOON))
    log(late.artifacts, 0, 192)
    log(begun.artifacts, 0, 192)
    after = evidence_of(begun, look(begun, (), no_labels, NOON))
    assert after[0][2] == shown[0][2], "the largest value stays, and good rows add none"
    in_order_of_arrival = evidence_of(late, look(late, (), no_labels, NOON))
    assert in_order_of_arrival[0][:2] == after[0][:2] == (192, 192)
    assert in_order_of_arrival[0][2] != after[0][2]


def test_files_may_be_deleted_after_they_counted(tmp_path: Path) -> None:
    place = place_of(FolderArtifacts(tmp_path))
    log(place.artifacts, 0, 100, failed=True)
    before = look(place, (), no_labels, NOON)
    place.artifacts.remove("serving/small")
    assert look(place, (), no_labels, NOON) == before


class _OutOfFiles(FolderArtifacts):
    """Artifacts whose process may open no further file, until `is_over`."""

    is_over = False

    def pull(self, name: str, files: object = None, *, last: str | None = None) -> Path:
        found = super().pull(name, files, last=last)  # pyright: ignore[reportArgumentType]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if not self.is_over and name.startswith("serving"):
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
            self.undo = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before)
        return found


def test_files_that_cannot_be_read_this_time_count_the_next_time(tmp_path: Path) -> None:
    artifacts = _OutOfFiles(tmp_path)
    place = place_of(artifacts)
    log(artifacts, 0, 100, failed=True)
    try:
        with pytest.raises(ArtifactsUnavailable, match="Too many open files"):
            look(place, (), no_labels, NOON)
    finally:
        artifacts.undo()
    artifacts.is_over = True
    after = look(place, (), no_labels, NOON)
    assert (after.of_canary, after.damaged) == (50, {})


def test_a_damaged_file_counts_once_it_is_restored(tmp_path: Path) -> None:
    """Newer files of the same server count meanwhile."""
    place = place_of(FolderArtifacts(tmp_path))
    log(place.artifacts, 0, 100)
    (file,) = tmp_path.rglob("*.parquet")
    good = file.read_bytes()
    newer = file.with_name(file.name.replace("000001", "000002"))
    log(place.artifacts, 100, 200)
    next(one for one in tmp_path.rglob("*.parquet") if one != file).rename(newer)
    file.write_bytes(b"PAR1 torn")
    for _ in range(2):
        torn = look(place, (), no_labels, NOON)
        assert torn.of_canary == 50
        assert "is no log of requests" in torn.damaged[NOON.date().isoformat()][file.name]
    file.write_bytes(good)
    for _ in range(2):
        restored = look(place, (), no_labels, NOON)
        assert (restored.of_canary, restored.repeated, restored.damaged) == (100, 0, {})


def test_a_damaged_file_that_is_removed_is_not_named_any_more(tmp_path: Path) -> None:
    place = place_of(FolderArtifacts(tmp_path))
    log(place.artifacts, 0, 100)
    (file,) = tmp_path.rglob("*.parquet")
    file.write_bytes(b"PAR1 torn")
    assert look(place, (), no_labels, NOON).damaged
    file.unlink()
    assert not look(place, (), no_labels, NOON).damaged


def test_labels_that_cannot_be_compared_wait_and_errors_still_decide(tmp_path: Path) -> None:
    place = place_of(FolderArtifacts(tmp_path), ERRORS, BRIER)
    log(place.artifacts, 0, 200, failed=True)

    def broken(record: CanaryRecord) -> tuple[str, FoundLabels]:
        commit, found = labels_of_all(record)
        assert found.rows is not None
        weight = np.full(len(found.rows.label), np.nan)
        return commit, replace(found, rows=replace(found.rows, weight=weight))

    record = look(place, KEY, broken, NOON)
    assert record == place.read()
    assert "brier: a value or a weight of a row is not a finite number" in record.labels_fault
    errors, brier = comparisons(place.section, record.metrics)
    assert (errors.canary, errors.canary_rows, brier.canary_rows) == (1.0, 100, 0)
    again = look(place, KEY, labels_of_all, NOON)
    assert (again.labels_fault, again.waiting) == ("", ())


def test_other_metrics_or_another_alpha_begin_another_record(tmp_path: Path) -> None:
    place = place_of(FolderArtifacts(tmp_path))
    log(place.artifacts, 0, 100)
    look(place, (), no_labels, NOON)
    other = place_of(place.artifacts, {**ERRORS, "no_worse_by": 0.1})
    assert other.read() == CanaryRecord()
    assert place.read().of_canary == 50


class Killed(BaseException):
    """End of the process in the middle of a look."""


class _Dying(FolderArtifacts):
    """Artifacts whose process dies at one of its calls."""

    def __init__(self, root: Path, calls: int) -> None:
        super().__init__(root)
        self.calls = calls

    def _count(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            raise Killed

    def files(self, name: str) -> dict[str, int]:
        self._count()
        return super().files(name)

    def pull(self, name: str, files: object = None, *, last: str | None = None) -> Path:
        self._count()
        return super().pull(name, files, last=last)  # pyright: ignore[reportArgumentType]

    @contextmanager
    def create(self, name: str, file: str) -> Generator[IO[bytes]]:
        self._count()
        with super().create(name, file) as stream:
            yield stream
            self._count()
        self._count()


def labels_of_all(record: CanaryRecord) -> tuple[str, FoundLabels]:
    rows = record.waiting
    labelled = Labelled(
        is_canary=np.array([one.is_canary for one in rows]),
        prediction=np.array([0.9 if one.is_canary else 0.1 for one in rows]),
        label=np.zeros(len(rows)),
    )
    return "a" * 40, FoundLabels(rows=labelled, waiting=(), left_out={})


def test_a_look_that_is_killed_anywhere_loses_and_repeats_no_row(tmp_path: Path) -> None:
    """Killed at its first call to the artifacts, then at its second, and so on until a look ends."""
    whole = place_of(FolderArtifacts(tmp_path / "whole"), ERRORS, BRIER)
    log(whole.artifacts, 0, 200, failed=False)
    wanted = evidence_of(whole, look(whole, KEY, labels_of_all, NOON))
    assert wanted[1][:2] == (100, 100)
    kills = 0
    while True:
        kills += 1
        root = tmp_path / str(kills)
        log(FolderArtifacts(root), 0, 200)
        dying = place_of(_Dying(root, kills), ERRORS, BRIER)
        try:
            look(dying, KEY, labels_of_all, NOON)
        except Killed:
            again = place_of(FolderArtifacts(root), ERRORS, BRIER)
            assert evidence_of(again, look(again, KEY, labels_of_all, NOON)) == wanted
        else:
            break
    assert kills > 8


def test_labels_count_in_the_order_in_which_they_became_visible(tmp_path: Path) -> None:
    """Yesterday's labels arrive after today's: they count after them."""
    place = place_of(FolderArtifacts(tmp_path), BRIER)
    log(place.artifacts, 0, 400)

    def some(count: int, wrong: float) -> Callable[[CanaryRecord], tuple[str, FoundLabels]]:
        def found(record: CanaryRecord) -> tuple[str, FoundLabels]:
            rows, left = record.waiting[-count:], record.waiting[:-count]
            is_canary = np.array([one.is_canary for one in rows])
            labelled = Labelled(
                is_canary=is_canary, prediction=np.where(is_canary, wrong, 0.1), label=np.zeros(len(rows))
            )
            return f"{count}", FoundLabels(rows=labelled, waiting=left, left_out={})

        return found

    bad = evidence_of(place, look(place, KEY, some(192, 1.0), NOON))
    good = evidence_of(place, look(place, KEY, some(96, 0.1), NOON))
    assert (bad[0][:2], good[0][:2]) == ((96, 96), (144, 144))
    assert good[0][2] == bad[0][2] > 0


def test_files_of_days_long_past_do_not_count(tmp_path: Path) -> None:
    place = place_of(FolderArtifacts(tmp_path))
    log(place.artifacts, 0, 100)
    assert look(place, (), no_labels, NOON + timedelta(days=8)).of_canary == 0
    assert look(place, (), no_labels, NOON + timedelta(days=7)).of_canary == 50


def test_rows_that_no_version_could_answer_do_not_count(tmp_path: Path) -> None:
    place = place_of(FolderArtifacts(tmp_path))
    log(place.artifacts, 0, 100, failed=True, counts=False)
    assert evidence_of(place, look(place, (), no_labels, NOON)) == [(0, 0, 0.0)]
    log(place.artifacts, 0, 100)
    record = look(place, (), no_labels, NOON)
    assert (record.of_canary, record.repeated) == (50, 0), "the entities have not counted before"


def test_one_client_leaves_room_for_the_entities_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With entities that do not exist, it used up the room of the record, and no later row counted."""
    monkeypatch.setattr(canary_record, "MOST_ENTITIES", 200)
    monkeypatch.setattr(canary_record, "MOST_OF_CLIENT", 100)
    place = place_of(FolderArtifacts(tmp_path))
    for first in (0, 60, 120):
        log(place.artifacts, first, first + 60, sender="one")
        record = look(place, (), no_labels, NOON)
    assert (len(record.entities), record.crowded, record.of_clients) == (100, 80, {"one": 100})
    log(place.artifacts, 1000, 1060, sender="other")
    record = look(place, (), no_labels, NOON)
    assert (len(record.entities), record.of_clients) == (160, {"one": 100, "other": 60})


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(0, 30))
def test_rows_that_wait_share_their_room_fairly(senders: list[str], room: int) -> None:
    rows = [
        WaitingRow(is_canary=False, at=NOON, key=(str(n),), prediction=(0.5,), sender=one)
        for n, one in enumerate(senders)
    ]
    kept = with_room(rows, room)
    sizes, found = Counter(senders), Counter(one.sender for one in kept)
    assert len(kept) <= room
    assert len(kept) > min(room, len(rows)) - max(1, len(sizes))
    for one, other in ((one, other) for one in sizes for other in sizes):
        assert found[one] == sizes[one] or found[one] >= found[other] - 1, (
            "nobody has more than who lost rows"
        )
    for one in sizes:
        mine = [row for row in rows if row.sender == one]
        assert [row for row in kept if row.sender == one] == mine[: found[one]]

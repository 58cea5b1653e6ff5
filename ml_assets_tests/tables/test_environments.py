"""Environments over a table: what they begin with, build, merge and leave behind."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.data.tables.environments import (
    EnvironmentConflict,
    EnvironmentExists,
    NotMergeable,
    changes_of,
    create_environment,
    drop_environment,
    inherited_by,
    merge_environment,
)
from ml_assets.data.tables.history.log import blame
from ml_assets.data.tables.manifest import Reconciliation
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, UndatedRows
from ml_assets_tests.tables.environment_place import Place
from ml_assets_tests.tables.orders_table import ORDERS, day, keys, reject, spec
from resources.lake.environments import EnvironmentMissing, EnvironmentNameRefused, environments
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings

ADA = Person.unchecked("ada")
KEPT: dict[str, Any] = {"is_known_at_ingestion": True}
FIRST, SECOND, THIRD, FOURTH = keys(4)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(Platform(Settings(home=tmp_path)))


def _objects(home: Path) -> set[Path]:
    return set((home / "lake").rglob("objects/*/*"))


def test_an_environment_begins_with_the_partitions_and_verdicts_of_main(place: Place, tmp_path: Path) -> None:
    before = _objects(tmp_path)
    inside = place.enter()
    assert _objects(tmp_path) == before
    assert inside.ask_guard([FIRST, SECOND]).ok
    assert not inside.ask_guard([FIRST, SECOND]).stale
    place.main.inside("try_it").ledger.models.verify()


def test_what_is_built_in_an_environment_stays_there(place: Place) -> None:
    inside = place.enter()
    head = place.main.lake.resolve("main")
    inside.publish({SECOND: day(SECOND, factor=2.0), THIRD: day(THIRD)}, run="run00002")
    reject(inside, FIRST)
    assert place.main.lake.resolve("main") == head
    assert list(place.main.lake.branches("audit-")) == []
    assert place.orders.ask_guard([FIRST]).ok
    assert not inside.ask_guard([FIRST]).ok
    (one,) = environments(place.main.settings.home)
    changes = changes_of(place.main, one)
    assert changes.changed == {ORDERS: (SECOND, THIRD)}
    assert changes.conflicts == {}


def test_main_goes_on_without_the_environment(place: Place) -> None:
    inside = place.enter()
    place.orders.publish({SECOND: day(SECOND, factor=3.0)}, run="run00003")
    assert inside.ask_guard([SECOND]).ok
    assert place.orders.ask_guard([SECOND]).ok


def test_a_merge_moves_partitions_and_verdicts_without_a_rebuild(place: Place, tmp_path: Path) -> None:
    inside = place.enter()
    inside.publish({SECOND: day(SECOND, factor=2.0), THIRD: day(THIRD)}, run="run00002")
    place.orders.publish({FIRST: day(FIRST, factor=5.0)}, run="run00003")
    objects, wanted = _objects(tmp_path), TableReader.at(inside.store).digests(ORDERS)
    merged = merge_environment(place.main, "try_it", ADA)
    assert merged.partitions == {ORDERS: (SECOND, THIRD)}
    assert merged.overtaken == ()
    assert _objects(tmp_path) == objects
    reader = TableReader.at(place.main.lake)
    assert {key: reader.digests(ORDERS)[key] for key in (SECOND, THIRD)} == {
        key: wanted[key] for key in (SECOND, THIRD)
    }
    validation = place.orders.ask_guard([FIRST, SECOND, THIRD])
    assert validation.ok
    assert not validation.stale
    newest = place.orders.ledger.newest_verdicts(ORDERS)
    assert {key: row.run_id for key, row in newest.items()} == {
        FIRST: "run00003",
        SECOND: "run00002",
        THIRD: "run00002",
    }
    assert blame(place.main.lake, ORDERS, THIRD)[0].made_by.author == "ada"


def _read_at(place: Place, moment: datetime, key: str = FIRST) -> pl.DataFrame:
    """Return a day as main knew it at `moment`."""
    reader = TableReader.at(place.main.lake).as_known(ORDERS, moment, place.main.ledger)
    return reader.scan(ORDERS, [key]).collect()


def test_a_correction_of_an_environment_counts_from_its_merge(place: Place) -> None:
    """Until then main had the rows from before, and never those that only the environment had in between."""
    inside = place.enter()
    for factor in (2.0, 3.0):
        inside.publish({FIRST: day(FIRST, factor=factor)}, run="run00002", **KEPT)
    assert not TableReader.at(place.main.lake).earlier(ORDERS)
    before = datetime.now(UTC)
    merge_environment(place.main, "try_it", ADA)
    [until] = {one.until for one in TableReader.at(place.main.lake).earlier(ORDERS)}
    assert until >= before
    assert _read_at(place, before).equals(day(FIRST))
    assert _read_at(place, until).equals(day(FIRST, factor=3.0))
    assert merge_environment(place.main, "try_it", ADA).partitions == {}
    assert list(place.main.whole_lake.branches("env-try_it--")) == []


def test_corrections_of_main_and_of_two_merges_keep_their_moments(place: Place) -> None:
    place.orders.publish({FIRST: day(FIRST, factor=2.0), SECOND: day(SECOND, factor=2.0)}, "run00002", **KEPT)
    moments, factors = [datetime.now(UTC)], [2.0]
    inside = place.enter()
    place.orders.publish({SECOND: day(SECOND, factor=7.0)}, "run00003", **KEPT)
    for factor in (3.0, 4.0):
        place.table().publish({FIRST: day(FIRST, factor=factor)}, "run00004", **KEPT)
        merge_environment(place.main, "try_it", ADA)
        moments.append(datetime.now(UTC))
        factors.append(factor)
    for moment, factor in zip(moments, factors, strict=True):
        assert _read_at(place, moment).equals(day(FIRST, factor=factor))
    assert _read_at(place, datetime(2013, 2, 1, tzinfo=UTC)).equals(day(FIRST))
    assert _read_at(place, moments[0], SECOND).equals(day(SECOND, factor=2.0))
    assert _read_at(place, moments[1], SECOND).equals(day(SECOND, factor=7.0))
    assert inside.ask_guard([FIRST], spec(**KEPT)).ok


def test_a_merge_keeps_the_rows_of_main_whatever_the_environment_kept(place: Place) -> None:
    """The environment dropped the rows of main, because its table did not keep any for a while."""
    place.orders.publish({THIRD: day(THIRD)}, "run00002", **KEPT)
    inside = place.enter()
    inside.publish({THIRD: day(THIRD, factor=2.0)}, "run00003")
    assert not TableReader.at(inside.store).earlier(ORDERS)
    inside.publish({THIRD: day(THIRD, factor=3.0)}, "run00004", **KEPT)
    merge_environment(place.main, "try_it", ADA)
    assert _read_at(place, datetime(2013, 2, 1, tzinfo=UTC), THIRD).equals(day(THIRD))


def test_a_repeated_merge_records_what_a_kill_left_out(place: Place) -> None:
    inside = place.enter()
    inside.publish({THIRD: day(THIRD)}, run="run00002")
    facts = {"audit": "passed"}
    place.main.whole_lake.merge("env-try_it", "main", "a merge that was killed before its verdicts", facts)
    assert not place.orders.ask_guard([THIRD]).ok
    merge_environment(place.main, "try_it", ADA)
    assert place.orders.ask_guard([THIRD]).ok
    again = merge_environment(place.main, "try_it", ADA)
    assert again.partitions == {}
    assert len(place.orders.ledger.histories(ORDERS, [THIRD])[THIRD]) == 1


def test_an_environment_can_be_merged_again_after_more_work(place: Place) -> None:
    inside = place.enter()
    inside.publish({SECOND: day(SECOND, factor=2.0)}, run="run00002")
    merge_environment(place.main, "try_it", ADA)
    place.table().publish({SECOND: day(SECOND, factor=4.0)}, run="run00004")
    merge_environment(place.main, "try_it", ADA)
    assert place.orders.ask_guard([SECOND]).ok
    assert [row.run_id for row in place.orders.ledger.histories(ORDERS, [SECOND])[SECOND]] == [
        "run00001",
        "run00002",
        "run00004",
    ]


def test_a_merge_is_refused_if_main_changed_the_same_partition(place: Place) -> None:
    inside = place.enter()
    inside.publish({SECOND: day(SECOND, factor=2.0), THIRD: day(THIRD)}, run="run00002")
    place.orders.publish({SECOND: day(SECOND, factor=3.0)}, run="run00003")
    head = place.main.lake.resolve("main")
    with pytest.raises(EnvironmentConflict, match=rf"{ORDERS} {SECOND}.*Create a new environment"):
        merge_environment(place.main, "try_it", ADA)
    assert place.main.lake.resolve("main") == head


def test_a_rejection_on_main_since_then_is_a_conflict(place: Place) -> None:
    inside = place.enter()
    inside.publish({SECOND: day(SECOND, factor=2.0)}, run="run00005")
    reject(place.orders, SECOND)
    with pytest.raises(EnvironmentConflict, match=SECOND):
        merge_environment(place.main, "try_it", ADA)


def _read_with(key: str, *undated: int) -> Incoming:
    """Return a day as it was read while the source had these orders without a time."""
    rows = day(FIRST).head(len(undated))
    rows = rows.with_columns(
        ordered_at=pl.lit(None, dtype=pl.Datetime("us", "UTC")), order=pl.Series(undated, dtype=pl.Int64)
    )
    counts = Reconciliation(returned=day(key).height + len(undated))
    return Incoming(
        key=key, data=day(key), undated=UndatedRows(frame=rows, column="ordered_at"), reconciliation=counts
    )


def _undated(place: Place) -> list[int]:
    aside, table = TableReader.at(place.main.lake, "main"), "quarantine/datasets_orders"
    found = aside.scan(table, ["undated"]).collect() if "undated" in aside.keys(table) else None
    return [] if found is None else sorted(found["order"])


@pytest.mark.parametrize(
    ("inside", "on_main", "after"),
    [((100,), None, [100]), ((100,), (100, 101), [100, 101]), ((100, 102), (), []), ((), (101,), [101])],
)
def test_rows_without_a_time_that_both_read_are_those_of_main(
    place: Place, inside: tuple[int, ...], on_main: tuple[int, ...] | None, after: list[int]
) -> None:
    """Each read of the source replaces them, so they would be a conflict of each environment."""
    place.orders.publish([_read_with(SECOND, 99)], run="run00001", quarantine_limit=0.5)
    there = place.enter()
    assert not there.publish([_read_with(THIRD, *inside)], run="run00002", quarantine_limit=0.5).rejected
    if on_main is not None:
        place.orders.publish([_read_with(FOURTH, *on_main)], run="run00003", quarantine_limit=0.5)
    merge_environment(place.main, "try_it", ADA)
    assert place.orders.ask_guard([THIRD]).ok
    assert _undated(place) == after


def test_the_same_content_on_both_sides_is_no_conflict(place: Place) -> None:
    inside = place.enter()
    for table in (inside, place.orders):
        table.publish({SECOND: day(SECOND, factor=2.0)}, run="run00002")
    merge_environment(place.main, "try_it", ADA)
    assert place.orders.ask_guard([SECOND]).ok


def test_a_partition_rejected_after_it_landed_prevents_the_merge(place: Place) -> None:
    inside = place.enter()
    inside.publish({THIRD: day(THIRD)}, run="run00003")
    reject(inside, THIRD)
    with pytest.raises(NotMergeable, match=f"{ORDERS} {THIRD} is rejected"):
        merge_environment(place.main, "try_it", ADA)


def test_an_acceptance_comes_along_with_both_names(place: Place) -> None:
    inside = place.enter()
    reject(inside, THIRD)
    accept_partition(
        inside.store, inside.ledger, ORDERS, THIRD, Person.unchecked("grace"), "the till was broken"
    )
    merge_environment(place.main, "try_it", ADA)
    (row,) = place.orders.ledger.newest_verdicts(ORDERS, [THIRD]).values()
    assert row.acceptance is not None
    assert row.acceptance.author == "ada"
    reason, _, names = row.acceptance.reason.partition(" (")
    assert reason == "the till was broken"
    assert "grace" in names
    assert "environment try_it" in names
    assert place.orders.ask_guard([THIRD]).ok
    place.orders.ledger.models.verify()


def test_a_dropped_environment_leaves_main_alone(place: Place, tmp_path: Path) -> None:
    inside = place.enter()
    reject(inside, THIRD)
    inside.publish({THIRD: day(THIRD)}, run="run00002")
    drop_environment(place.main, "try_it")
    assert list(place.main.whole_lake.branches()) == ["main"]
    assert list((tmp_path / "environments").iterdir()) == []
    assert place.orders.ask_guard([FIRST, SECOND]).ok
    with pytest.raises(EnvironmentMissing, match="ml-assets env create"):
        drop_environment(place.main, "try_it")


def test_names_are_checked_and_used_once(place: Place) -> None:
    place.enter()
    with pytest.raises(EnvironmentExists, match="env drop try_it"):
        place.enter()
    with pytest.raises(EnvironmentNameRefused, match="'feature_new_rides' is possible"):
        create_environment(place.main, "feature/new-rides", "ada")
    with pytest.raises(EnvironmentNameRefused, match=r"^'main' "):
        create_environment(place.main, "main", "ada")


def test_an_environment_that_does_not_exist_creates_nothing(place: Place, tmp_path: Path) -> None:
    lost = place.main.inside("typo")
    for part in ("lake", "ledger", "tracker"):
        with pytest.raises(EnvironmentMissing, match="ml-assets env create typo"):
            getattr(lost, part)
    assert not (tmp_path / "environments").exists()


def test_the_inherited_partitions_are_those_of_the_origin(place: Place) -> None:
    assert inherited_by(place.main) is None
    inside = place.enter()
    inside.publish({THIRD: day(THIRD)}, run="run00002")
    inherited = inherited_by(place.main.inside("try_it"))
    assert inherited is not None
    assert inherited.keys(ORDERS) == [FIRST, SECOND]

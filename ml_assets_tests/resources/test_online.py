"""An online store keeps the newest row of each entity, whatever the order of its writers."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ml_assets_tests.resources.online_stores import HOUR, TABLE, TTL, NewestInMemory, now_us, race, row
from resources.addresses import Address
from resources.online import (
    LARGEST_MOMENT,
    OnlineRow,
    OnlineStoreRefused,
    OnlineStoreUnavailable,
    SQLiteOnlineStore,
    open_online_store,
)

ENTITIES = ["a", "b", '["ü",1]']


class WritersOfAnOnlineStore(RuleBasedStateMachine):
    """Two stores on one file write rows of any age in any order; the store answers as a dictionary does."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name) / "online.db"
        self.stores = [SQLiteOnlineStore(path, environment="test") for _ in range(2)]
        self.other = SQLiteOnlineStore(path, environment="other")
        self.model = NewestInMemory()
        self.begin = now_us()

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(
        writer=st.integers(0, 1),
        written=st.lists(
            # Ages in hours: far enough from the time to live that the test's own duration does not matter.
            st.tuples(st.sampled_from(ENTITIES), st.sampled_from([-5, 0, 3, 18, 40]), st.integers(0, 2)),
            max_size=4,
        ),
    )
    def write(self, writer: int, written: list[tuple[str, int, int]]) -> None:
        rows = [row(entity, self.begin - age * HOUR, self.begin + known) for entity, age, known in written]
        # An expired row is deleted, so the store may take an expired row again; nobody can read either.
        fresh = [one for one in rows if one.event_us + TTL > self.begin]
        self.stores[writer].write(TABLE, [one for one in rows if one not in fresh], TTL)
        assert self.stores[writer].write(TABLE, fresh, TTL) == self.model.write(fresh)

    @invariant()
    def both_read_the_newest(self) -> None:
        expected = [self.model.read(entity, self.begin) for entity in ENTITIES]
        for store in self.stores:
            assert store.read(TABLE, ENTITIES) == expected
        assert self.other.read(TABLE, ENTITIES) == [None] * len(ENTITIES)


WritersOfAnOnlineStore.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestWritersOfAnOnlineStore = WritersOfAnOnlineStore.TestCase


def test_processes_that_race_leave_the_newest_row(tmp_path: Path) -> None:
    path = tmp_path / "online.db"
    newest = race(None, path, "test", processes=3, rows=60)
    found = SQLiteOnlineStore(path, environment="test").read(TABLE, list(newest))
    assert {one.entity: one.event_us for one in found if one is not None} == newest


def test_a_correction_known_later_replaces_and_an_older_does_not(tmp_path: Path) -> None:
    store, at = SQLiteOnlineStore(tmp_path / "online.db", environment="test"), now_us()
    assert store.write(TABLE, [row("a", at, at + 5)], None) == 1
    assert store.write(TABLE, [row("a", at, at + 4)], None) == 0
    assert store.write(TABLE, [row("a", at, at + 6)], None) == 1
    assert store.read(TABLE, ["a"]) == [row("a", at, at + 6)]


def test_an_expired_row_is_not_read_and_deleted_by_the_next_write(tmp_path: Path) -> None:
    path, at = tmp_path / "online.db", now_us()
    store = SQLiteOnlineStore(path, environment="test")
    store.write(TABLE, [row("old", at - TTL - HOUR, at), row("new", at - TTL + HOUR, at)], TTL)
    assert [one and one.entity for one in store.read(TABLE, ["old", "new"])] == [None, "new"]
    assert sqlite3.connect(path).execute("SELECT entity FROM newest").fetchall() == [("new",)]


def test_a_damaged_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "online.db"
    path.write_bytes(b"no database, but long enough to have a header of one" * 20)
    with pytest.raises(OnlineStoreRefused, match="move the file away"):
        SQLiteOnlineStore(path, environment="test").read(TABLE, ["a"])


@pytest.mark.parametrize("successor", ["none yet", "of another process"])
def test_a_file_that_was_moved_away_is_neither_read_nor_written(tmp_path: Path, successor: str) -> None:
    """The remedy of a damaged file says "move the file away": a server went on reading it, and a writer writing."""
    path, at = tmp_path / "online.db", now_us()
    server, writer = (SQLiteOnlineStore(path, environment="test") for _ in range(2))
    writer.write(TABLE, [row("old", at, at)], None)
    assert server.read(TABLE, ["old"]) == [row("old", at, at)]
    path.rename(tmp_path / "moved.db")
    if successor == "none yet":
        assert server.read(TABLE, ["old"]) == [None]
        assert not path.exists(), "reading creates nothing"
    else:
        SQLiteOnlineStore(path, environment="test").write(TABLE, [row("else", at, at)], None)
    assert server.read(TABLE, ["old"]) == [None]
    assert writer.write(TABLE, [row("new", at, at)], None) == 1
    assert server.read(TABLE, ["old", "new"]) == [None, row("new", at, at)]


def test_a_file_that_is_moved_away_during_a_write_gets_none_of_it(tmp_path: Path) -> None:
    path, at = tmp_path / "online.db", now_us()
    store = SQLiteOnlineStore(path, environment="test")
    store.write(TABLE, [row("old", at, at)], None)

    def rows() -> Iterator[OnlineRow]:
        yield row("first", at, at)
        path.rename(tmp_path / "moved.db")
        yield row("last", at, at)

    assert store.write(TABLE, rows(), None) == 2
    assert None not in store.read(TABLE, ["first", "last"])


def test_a_locked_file_is_unavailable_after_the_patience(tmp_path: Path) -> None:
    path = tmp_path / "online.db"
    store = SQLiteOnlineStore(path, environment="test", patience_seconds=0.05)
    store.write(TABLE, [row("a", 1, 1)], None)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(OnlineStoreUnavailable, match="database is locked"):
        store.write(TABLE, [row("a", 2, 2)], None)
    assert store.read(TABLE, ["a"]) == [row("a", 1, 1)]
    holder.execute("ROLLBACK")
    assert store.write(TABLE, [row("a", 2, 2)], None) == 1


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "online.db"
    with sqlite3.connect(path) as made:
        made.execute("PRAGMA user_version=7")
    with pytest.raises(OnlineStoreRefused, match="has format 7"):
        SQLiteOnlineStore(path, environment="test").read(TABLE, ["a"])


def test_a_moment_beyond_2255_is_refused(tmp_path: Path) -> None:
    store = SQLiteOnlineStore(tmp_path / "online.db", environment="test")
    with pytest.raises(OnlineStoreRefused, match="until 2255"):
        store.write(TABLE, [row("a", LARGEST_MOMENT + 1, 0)], None)


def test_an_address_of_another_kind_is_refused_without_credentials(tmp_path: Path) -> None:
    with pytest.raises(OnlineStoreRefused, match=r"postgresql://.*redis://HOST") as refused:
        open_online_store(Address("postgresql://me:hidden@host/db"), tmp_path, environment="test")
    assert "hidden" not in str(refused.value)


def test_redis_that_is_away_is_unavailable_without_credentials(tmp_path: Path) -> None:
    address = Address("redis://:hidden@127.0.0.1:1/0")
    store = open_online_store(address, tmp_path, environment="test", patience_seconds=0.2)
    with pytest.raises(OnlineStoreUnavailable, match=r"redis-cli ping.* ML_ASSETS_ONLINE_URL") as away:
        store.read(TABLE, ["a"])
    assert "hidden" not in str(away.value)

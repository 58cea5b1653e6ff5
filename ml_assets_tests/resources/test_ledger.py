"""Verdicts, acceptances and promotions stay; the newest verdict decides; writers at once lose nothing."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from ml_assets_tests.resources import ledger_writer
from ml_assets_tests.resources.ledger_environments import assert_each_ledger_belongs_to_one_environment
from ml_assets_tests.resources.ledger_writer import write_one_of_each
from resources.ledger import (
    Ledger,
    LedgerBusy,
    LedgerError,
    NewVerdict,
    NothingToAccept,
    NotPrintable,
    Person,
)
from resources.ledger import tables as ledger_tables

TABLE = "datasets/flights"
DAY = "2013-01-01"


def new(key: str = DAY, **facts: Any) -> NewVerdict:
    known: dict[str, Any] = {
        "table": TABLE,
        "key": key,
        "content_digest": "c1",
        "contract_digest": "rules",
        "status": "passed",
        "rows": 842,
        "body_json": '{"findings": []}',
        "run_id": "run",
        "branch": "main",
    }
    return NewVerdict(**known | facts)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/not/made/yet/ledger.db"


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger(url)


def test_opening_touches_nothing_until_it_is_used(tmp_path: Path, url: str) -> None:
    Ledger(url)
    assert not any(tmp_path.iterdir())


def test_newest_attempt_decides(ledger: Ledger) -> None:
    ledger.record_verdicts([new(), new("2013-01-02")])
    (row,) = ledger.record_verdicts([new(status="rejected", content_digest="c2", rows=3, branch="audit-1")])
    assert (row.number, row.blocks) == (2, True)
    newest = ledger.newest_verdicts(TABLE, [DAY, "2013-01-02", "2013-01-03"])
    assert newest[DAY] == row
    assert newest["2013-01-02"].number == 1
    assert newest.keys() == {DAY, "2013-01-02"}
    assert ledger.newest_verdicts(TABLE) == newest
    assert ledger.newest_verdicts("datasets/weather", [DAY]) == {}
    assert [one.status for one in ledger.histories(TABLE, [DAY])[DAY]] == ["passed", "rejected"]


def test_several_attempts_in_one_call_are_numbered_in_order(ledger: Ledger) -> None:
    rows = ledger.record_verdicts([new(), new("2013-01-02"), new(content_digest="c2")])
    assert [(row.key, row.number) for row in rows] == [(DAY, 1), ("2013-01-02", 1), (DAY, 2)]


def test_acceptance_holds_for_one_attempt_only(ledger: Ledger) -> None:
    ledger.record_verdicts([new(status="rejected")])
    acceptance = ledger.accept(TABLE, DAY, 1, Person.unchecked("ada"), "a strike, the number is right")
    row = ledger.newest_verdicts(TABLE, [DAY])[DAY]
    assert (row.status, row.blocks, row.acceptance) == ("accepted", False, acceptance)
    assert (acceptance.number, acceptance.content_digest) == (1, "c1")
    ledger.record_verdicts([new(status="rejected", content_digest="c2")])
    assert ledger.newest_verdicts(TABLE, [DAY])[DAY].blocks
    assert [one.status for one in ledger.histories(TABLE, [DAY])[DAY]] == ["accepted", "rejected"]


def test_accepting_twice_keeps_the_first_word(ledger: Ledger) -> None:
    ledger.record_verdicts([new(status="rejected")])
    first = ledger.accept(TABLE, DAY, 1, Person.unchecked("ada"), "a strike")
    assert ledger.accept(TABLE, DAY, 1, Person.unchecked("bob"), "me too") == first


def test_only_a_rejected_partition_can_be_accepted_and_with_a_reason(ledger: Ledger) -> None:
    with pytest.raises(NothingToAccept, match="materialize that partition first"):
        ledger.accept(TABLE, DAY, 1, Person.unchecked("ada"), "why not")
    ledger.record_verdicts([new()])
    with pytest.raises(NothingToAccept, match=r"2013-01-01 .*\(verdict 1: passed\)"):
        ledger.accept(TABLE, DAY, 1, Person.unchecked("ada"), "why not")
    with pytest.raises(NothingToAccept, match="newer than verdict 0"):
        ledger.accept(TABLE, DAY, 0, Person.unchecked("ada"), "why not")
    with pytest.raises(NothingToAccept, match="needs a reason"):
        ledger.accept(TABLE, DAY, 1, Person.unchecked("ada"), "  ")


def test_validated_content_is_found_again_for_its_own_partition_and_rules(ledger: Ledger) -> None:
    ledger.record_verdicts([new(), new("2013-01-02", content_digest="c2", status="rejected")])
    contents = {DAY: "c1", "2013-01-02": "c1", "2013-01-03": "c1"}
    assert ledger.find_verdicts(TABLE, contents, "rules").keys() == {DAY}
    assert ledger.find_verdicts(TABLE, contents, "other rules") == {}
    assert ledger.find_verdicts("datasets/weather", contents, "rules") == {}
    ledger.accept(TABLE, "2013-01-02", 1, Person.unchecked("ada"), "fine")
    (found,) = ledger.find_verdicts(TABLE, {"2013-01-02": "c2"}, "rules").values()
    assert found.status == "accepted"


def test_volumes_are_those_of_the_newest_version_that_may_be_used(ledger: Ledger) -> None:
    ledger.record_verdicts([new(rows=10), new("2013-01-02", status="warned", rows=20)])
    ledger.record_verdicts([new(status="rejected", rows=11), new("2013-01-03", status="rejected", rows=5)])
    assert ledger.volumes(TABLE) == {DAY: 10, "2013-01-02": 20}
    ledger.accept(TABLE, DAY, 2, Person.unchecked("ada"), "fine")
    assert ledger.volumes(TABLE) == {DAY: 11, "2013-01-02": 20}


def test_a_year_of_partitions_is_looked_up_at_once(ledger: Ledger) -> None:
    keys = [str(datetime(2013, 1, 1, tzinfo=UTC).date() + timedelta(days=day)) for day in range(1200)]
    for _ in range(3):
        ledger.record_verdicts([new(key, body_json="x" * 500) for key in keys])
    year = keys[:337]
    ways = {"at once": lambda: ledger.newest_verdicts(TABLE, year)}
    ways["one by one"] = lambda: {
        k: v for key in year for k, v in ledger.newest_verdicts(TABLE, [key]).items()
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(3):
        for way, look_up in ways.items():
            start = time.process_time()
            found = look_up()
            seconds[way].append(time.process_time() - start)
            assert [found[key].number for key in year] == [3] * 337
    assert min(seconds["at once"]) < min(seconds["one by one"]) / 5
    assert (
        len(ledger.newest_verdicts(TABLE, keys))
        == len(ledger.find_verdicts(TABLE, dict.fromkeys(keys, "c1"), "rules"))
        == 1200
    )


def test_log_of_promotions_tells_who_held_a_role_when(ledger: Ledger) -> None:
    start = datetime(2014, 1, 1, tzinfo=UTC)

    def promote(version: str, alias: str, day: int) -> None:
        at = start + timedelta(days=day)
        facts = {
            "by": Person.unchecked("ada"),
            "reason": f"r{day}",
            "bundle_digest": f"b{version}",
            "evaluation_digest": "e",
        }
        ledger.models.promote("flight_delay", version, alias, at=at, **facts)

    promote("1.0.0", "production", 0)
    promote("1.1.0", "canary", 1)
    promote("1.1.0", "production", 2)
    promote("1.0.0", "production", 3)
    assert [one.version for one in ledger.models.promotions("flight_delay")] == [
        "1.0.0",
        "1.1.0",
        "1.1.0",
        "1.0.0",
    ]

    def version(day: float, alias: str = "production") -> str | None:
        found = ledger.models.in_production("flight_delay", alias, at=start + timedelta(days=day))
        return found.version if found else None

    assert [version(day) for day in (-1, 0, 1.5, 2, 2.5, 3, 9)] == [
        None,
        "1.0.0",
        "1.0.0",
        "1.1.0",
        "1.1.0",
    ] + ["1.0.0"] * 2
    assert version(9, "canary") == "1.1.0"
    now = ledger.models.in_production("flight_delay")
    assert now is not None
    assert (now.reason, now.at, now.at.tzinfo) == ("r3", start + timedelta(days=3), UTC)
    assert ledger.models.in_production("another") is None


def test_time_without_a_zone_is_refused(ledger: Ledger) -> None:
    naive = datetime(2014, 1, 1)  # noqa: DTZ001 - what is refused
    with pytest.raises(ValueError, match="has no time zone"):
        ledger.models.promote(
            "m",
            "1",
            "production",
            by=Person.unchecked("a"),
            reason="r",
            bundle_digest="b",
            evaluation_digest="e",
            at=naive,
        )


WAYS_TO_CHANGE = (
    "DELETE FROM {table}",
    "UPDATE {table} SET at = at",
    "UPDATE OR REPLACE {table} SET at = at",
    "UPDATE OR IGNORE {table} SET at = at",
    "INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
    "REPLACE INTO {table} SELECT * FROM {table}",
    "INSERT INTO {table} SELECT * FROM {table} WHERE true ON CONFLICT DO UPDATE SET at = '2000-01-01'",
    "INSERT OR REPLACE INTO {table} (rowid, {columns}) SELECT rowid, {others} FROM {table}",
)


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
@pytest.mark.parametrize("table", sorted(ledger_tables.metadata.tables))
def test_nothing_written_can_be_changed(tmp_path: Path, table: str, recursive: str) -> None:
    """Nor replaced: not by a row of the same key, and not by one of another key at the same place."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.record_verdicts([new(status="rejected")])
    ledger.accept(TABLE, DAY, 1, Person.unchecked("ada"), "fine")
    write_one_of_each(ledger)
    names = [
        column.name
        for column in ledger_tables.metadata.tables[table].columns
        if column.name not in ("id", "place")
    ]
    others = {"number": "7"}
    words = {
        "table": table,
        "columns": ", ".join(f'"{name}"' for name in names),
        "others": ", ".join(others.get(name, f'"{name}"') for name in names),
    }
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA recursive_triggers = {recursive}")
        before = connection.execute(f"SELECT * FROM {table}").fetchall()
        assert before
        for statement in WAYS_TO_CHANGE:
            with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
                connection.execute(statement.format(**words))
        assert connection.execute(f"SELECT * FROM {table}").fetchall() == before


def test_each_verdict_and_acceptance_is_a_change_of_its_table(ledger: Ledger) -> None:
    assert ledger.newest_change(TABLE) == 0
    ledger.record_verdicts(
        [new("2013-01-01"), new("2013-01-02", status="rejected"), new(table="datasets/other")]
    )
    seen = ledger.newest_change(TABLE)
    assert (seen, ledger.newest_change("datasets/other")) == (2, 1)
    assert ledger.changed_since(TABLE, 0) == {"2013-01-01", "2013-01-02"}
    assert ledger.changed_since(TABLE, seen) == set()
    ledger.accept(TABLE, "2013-01-02", 1, Person.unchecked("ada"), "fine")
    assert ledger.changed_since(TABLE, seen) == {"2013-01-02"}
    ledger.accept(TABLE, "2013-01-02", 1, Person.unchecked("ada"), "fine")
    assert ledger.newest_change(TABLE) == 3


def test_failed_batch_leaves_nothing_behind(ledger: Ledger) -> None:
    broken = new("2013-01-02", run_id=None)
    with pytest.raises(sa.exc.IntegrityError, match="NOT NULL"):
        ledger.record_verdicts([new(), broken])
    assert ledger.newest_verdicts(TABLE) == {}


def test_writer_that_waits_too_long_is_told_so_while_readers_go_on(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db", patience_seconds=0.2)
    ledger.record_verdicts([new()])
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusy, match="another program holds it"):
            ledger.record_verdicts([new()])
        assert ledger.newest_verdicts(TABLE)[DAY].number == 1
    assert ledger.record_verdicts([new()])[0].number == 2


def test_one_process_at_a_time_has_the_turn_of_a_table(url: str) -> None:
    """A process that is killed gives its turn back."""
    program = (
        "import sys; from resources.ledger import Ledger\n"
        "with Ledger(sys.argv[1]).turn(sys.argv[2]): print('mine', flush=True); input()"
    )
    arguments = [sys.executable, "-c", program, url, TABLE]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mine\n"
        ledger = Ledger(url)
        with ledger.turn("datasets/other"):
            assert ledger.record_verdicts([new()])[0].number == 1, "only turns wait"
        with (
            pytest.raises(LedgerBusy, match=f"the lock on {TABLE}"),
            ledger.turn(TABLE, patience_seconds=0.1),
        ):
            pass
        holder.kill()
    with ledger.turn(TABLE):
        pass


def test_ledger_that_cannot_be_opened_says_where(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(LedgerError, match=r"ledger\.db.*unable to open"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db").volumes(TABLE)


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, url: str) -> None:
    rounds, names = 25, ("one", "two")
    writers = [
        subprocess.Popen([sys.executable, ledger_writer.__file__, url, name, str(rounds)]) for name in names
    ]
    assert [writer.wait(timeout=100) for writer in writers] == [0, 0]
    ledger = Ledger(url)
    for key in (DAY, "2013-01-02"):
        rows = ledger.histories(TABLE, [key])[key]
        assert [row.number for row in rows] == list(range(1, 2 * rounds + 1))
        for name in names:
            assert [row.rows for row in rows if row.run_id == name] == list(range(rounds))
    assert {len(ledger.histories(TABLE, [f"{name}-only"])[f"{name}-only"]) for name in names} == {rounds}


def test_processes_of_two_environments_never_share_a_ledger(tmp_path: Path) -> None:
    """Four find each home empty together."""
    assert_each_ledger_belongs_to_one_environment([(tmp_path / str(number), None) for number in range(10)])


attempts = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["passed", "warned", "rejected"]), st.booleans()),
    max_size=12,
)


@settings(max_examples=15)
@given(attempts)
def test_ledger_agrees_with_its_definition(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Any]
) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db")
    decided: dict[str, tuple[int, str]] = {}
    volumes: dict[str, int] = {}
    for rows, (key, status, accepts) in enumerate(steps, start=1):
        (row,) = ledger.record_verdicts([new(key, status=status, rows=rows, content_digest=str(rows))])
        if accepts and status == "rejected":
            ledger.accept(TABLE, key, row.number, Person.unchecked("ada"), "fine")
            status = "accepted"
        decided[key] = (rows, status)
        if status != "rejected":
            volumes[key] = rows
    newest = ledger.newest_verdicts(TABLE)
    assert {key: (row.rows, row.status) for key, row in newest.items()} == decided
    assert ledger.volumes(TABLE) == volumes


def test_tables_can_be_made_on_postgresql() -> None:
    for table in ledger_tables.metadata.sorted_tables:
        text = str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
        # Decisions are hashed as they are stored, so their time is text.
        assert ("TIMESTAMP WITH TIME ZONE" in text) == (table.name != "ledger_decisions")


@pytest.mark.parametrize("said", ["a strike\nor two", "\x1b[2K", "\udcff"])
def test_an_acceptance_with_text_that_does_not_print_is_refused(ledger: Ledger, said: str) -> None:
    ledger.record_verdicts([new(status="rejected")])
    for author, reason in (("ada", said), (said, "a strike")):
        with pytest.raises(NotPrintable, match=r"(author|reason) .*does not print"):
            ledger.accept(TABLE, DAY, 1, Person.unchecked(author), reason)
    assert ledger.newest_verdicts(TABLE, [DAY])[DAY].acceptance is None

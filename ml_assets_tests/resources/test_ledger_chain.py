"""Hash chain over the decisions about models: every change behind the ledger's back is found and named."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets_tests.resources.ledger_chains import (
    KINDS,
    assert_a_changed_row_is_named,
    assert_nothing_is_decided_on_a_changed_row,
    assert_several_reads_see_one_state,
    assert_several_writers_make_one_chain,
    assert_times_and_letters_come_back_as_they_were,
)
from ml_assets_tests.resources.ledger_writer import EVALUATION, write_one_of_each
from resources.ledger import Head, Ledger, LedgerChanged, LedgerError, chain
from resources.ledger.tables import decisions, metadata

COLUMNS = tuple(column.name for column in decisions.columns)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    """One row of each kind, and one of another model after them."""
    ledger = Ledger(f"sqlite:///{path}")
    write_one_of_each(ledger)
    ledger.models.record_evaluation(replace(EVALUATION, model="other"))
    return ledger


@pytest.fixture
def attacker(ledger: Ledger, path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the database file, whose triggers are gone."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        drop_triggers(connection)
        yield connection


def drop_triggers(connection: sqlite3.Connection) -> None:
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")


def row_at(connection: sqlite3.Connection, place: int) -> dict[str, Any]:
    found = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM ledger_decisions WHERE place = ?", (place,))
    return dict(zip(COLUMNS, found.fetchone(), strict=True))


def insert(connection: sqlite3.Connection, row: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(COLUMNS))
    connection.execute(f"INSERT INTO ledger_decisions VALUES ({marks})", [row[name] for name in COLUMNS])


def test_chain_of_an_untouched_ledger_holds(ledger: Ledger, path: Path) -> None:
    head = ledger.models.verify()
    assert head.place == len(KINDS) + 1
    assert Ledger(f"sqlite:///{path}").models.verify(head) == head
    ledger.models.record_evaluation(replace(EVALUATION, evaluation_digest="later"))
    later = ledger.models.verify(head)
    assert later.place == head.place + 1
    assert Head.parse(str(later)) == later


def test_empty_ledger_has_an_empty_chain(path: Path) -> None:
    assert Ledger(f"sqlite:///{path}").models.verify() == Head(place=0, digest="")


def test_every_kind_of_row_is_in_the_chain(attacker: sqlite3.Connection) -> None:
    kinds = [kind for (kind,) in attacker.execute("SELECT kind FROM ledger_decisions ORDER BY place")]
    assert kinds == [*KINDS, "evaluation"]
    assert {name for name in metadata.tables if "verdict" not in name and "accept" not in name} == {
        "ledger_environment",
        "ledger_decisions",
        "ledger_changes",  # it only says which verdicts and acceptances came since
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_row_of_each_kind_is_named(path: Path, kind: str) -> None:
    assert_a_changed_row_is_named(f"sqlite:///{path}", kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_row_of_each_kind_is_named(ledger: Ledger, attacker: sqlite3.Connection, kind: str) -> None:
    place = KINDS.index(kind) + 1
    attacker.execute("DELETE FROM ledger_decisions WHERE place = ?", (place,))
    with pytest.raises(LedgerChanged, match=rf"row {place} .* row {place + 1} ") as found:
        ledger.models.verify()
    assert (found.value.how, found.value.place) == ("missing", place)


def test_a_removed_model_is_noticed(ledger: Ledger, attacker: sqlite3.Connection) -> None:
    attacker.execute("DELETE FROM ledger_decisions WHERE model = 'm'")
    with pytest.raises(LedgerChanged, match="row 1 ") as found:
        ledger.models.verify()
    assert (found.value.how, found.value.place) == ("missing", 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_inserted_row_of_each_kind_is_named(
    ledger: Ledger, attacker: sqlite3.Connection, kind: str
) -> None:
    """The later rows move one place up, and the inserted row has a digest and a predecessor that fit."""
    place = KINDS.index(kind) + 1
    copy = row_at(attacker, place) | {"reason": "forged"}
    attacker.execute("UPDATE ledger_decisions SET place = place + 100 WHERE place >= ?", (place,))
    attacker.execute("UPDATE ledger_decisions SET place = place - 99 WHERE place >= 100")
    insert(attacker, copy | {"digest": chain.digest_of(copy)})
    with pytest.raises(LedgerChanged, match=rf"^row {place + 1} ") as found:
        ledger.models.verify()
    assert (found.value.how, found.value.place) == ("changed", place + 1)


def test_exchanged_rows_are_named(ledger: Ledger, attacker: sqlite3.Connection) -> None:
    for source, target in ((2, 100), (3, 2), (100, 3)):
        attacker.execute("UPDATE ledger_decisions SET place = ? WHERE place = ?", (target, source))
    with pytest.raises(LedgerChanged, match=r"^row 2 \(promotion") as found:
        ledger.models.verify()
    assert (found.value.how, found.value.place) == ("changed", 2)


def test_a_row_with_a_new_digest_breaks_the_chain_after_it(
    ledger: Ledger, attacker: sqlite3.Connection
) -> None:
    forged = row_at(attacker, 2) | {"bundle_digest": "mine"}
    attacker.execute("DELETE FROM ledger_decisions WHERE place = 2")
    insert(attacker, forged | {"digest": chain.digest_of(forged)})
    with pytest.raises(LedgerChanged, match=r"^row 3 .*row 2 ") as found:
        ledger.models.verify()
    assert (found.value.how, found.value.place) == ("relinked", 3)


@pytest.mark.parametrize("change", ["facts = '{'", "facts = '{}'", "at = 'noon'", "author = NULL"])
def test_a_row_that_cannot_be_read_is_no_surprise(
    ledger: Ledger, attacker: sqlite3.Connection, change: str
) -> None:
    attacker.execute("PRAGMA writable_schema = ON")
    attacker.execute(
        "UPDATE sqlite_master SET sql = replace(sql, 'author TEXT NOT NULL', 'author TEXT') WHERE type = 'table'"
    )
    attacker.execute("PRAGMA writable_schema = RESET")
    attacker.execute(f"UPDATE ledger_decisions SET {change} WHERE place = 1")
    with pytest.raises(LedgerChanged, match="ml-assets ledger verify") as found:
        ledger.models.evaluations("m")
    assert (found.value.how, found.value.place) == ("unreadable", None)
    with pytest.raises(LedgerChanged, match="row 1 "):
        ledger.models.verify()


def test_a_head_kept_elsewhere_shows_a_rewritten_or_shortened_chain(
    ledger: Ledger, attacker: sqlite3.Connection
) -> None:
    """Without it, nothing can: whoever can write the database can also compute digests."""
    head = ledger.models.verify()
    last = row_at(attacker, head.place)
    attacker.execute("DELETE FROM ledger_decisions WHERE place = ?", (head.place,))
    assert ledger.models.verify().place == head.place - 1
    with pytest.raises(LedgerChanged, match="row 8") as found:
        ledger.models.verify(head)
    assert (found.value.how, found.value.place) == ("shortened", 9)
    forged = last | {"bundle_digest": "mine"}
    insert(attacker, forged | {"digest": chain.digest_of(forged)})
    ledger.models.verify()
    with pytest.raises(LedgerChanged, match=f"row 9 .* {head.digest[:12]}") as found:
        ledger.models.verify(head)
    assert (found.value.how, found.value.place) == ("replaced", 9)


@pytest.mark.parametrize("text", ["", "5", "5:abc", ":" + "a" * 64, "x:" + "a" * 64])
def test_text_that_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(LedgerError, match="expected PLACE:DIGEST"):
        Head.parse(text)


CHANGES: dict[str, Callable[[str], str]] = {
    "a character more": lambda old: old + " ",
    "a character less": lambda old: old[:-1],
    "empty": lambda old: "",
    "other case": lambda old: old.swapcase(),
    "other text": lambda old: "other",
}


@settings(max_examples=60, deadline=None)
@given(
    place=st.integers(1, len(KINDS) + 1),
    column=st.sampled_from(COLUMNS),
    change=st.one_of(st.sampled_from(sorted(CHANGES)), st.text(max_size=5), st.binary(max_size=3)),
    number=st.integers(-(2**62), 2**62),
)
def test_any_change_of_one_field_is_noticed(
    written: tuple[Path, Ledger], place: int, column: str, change: str | bytes, number: int
) -> None:
    """Every column of every row, by text, bytes and numbers."""
    path, ledger = written
    with closing(sqlite3.connect(path)) as connection:
        before = row_at(connection, place)
        if column == "place":
            after: Any = number
        elif isinstance(change, str) and change in CHANGES:
            after = CHANGES[change](before[column])
        else:
            after = change
        others = {} if column != "place" else {one for one in range(1, len(KINDS) + 2) if one != place}
        if after == before[column] or after in others:
            return
        connection.execute(f"UPDATE ledger_decisions SET {column} = ? WHERE place = ?", (after, place))
        connection.commit()
        try:
            with pytest.raises(LedgerChanged):
                ledger.models.verify()
        finally:
            key = after if column == "place" else place
            connection.execute(
                f"UPDATE ledger_decisions SET {column} = ? WHERE place = ?", (before[column], key)
            )
            connection.commit()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ledger]:
    """A ledger and its file without triggers that each example changes, and mends again."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    ledger = Ledger(f"sqlite:///{path}")
    write_one_of_each(ledger)
    ledger.models.record_evaluation(replace(EVALUATION, model="other"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        drop_triggers(connection)
    return path, ledger


def test_writers_of_several_models_make_one_chain(path: Path) -> None:
    assert_several_writers_make_one_chain(f"sqlite:///{path}")


def test_times_and_letters_come_back_as_they_were(path: Path) -> None:
    assert_times_and_letters_come_back_as_they_were(f"sqlite:///{path}")


def test_several_reads_see_one_state(path: Path) -> None:
    assert_several_reads_see_one_state(f"sqlite:///{path}")


def test_nothing_is_decided_on_a_changed_row(path: Path) -> None:
    assert_nothing_is_decided_on_a_changed_row(f"sqlite:///{path}")

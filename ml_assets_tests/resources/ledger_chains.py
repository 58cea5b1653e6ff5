"""Checks of the hash chain, of reads and of decisions on any database, by its URL, and the attacker that they need."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa

from ml_assets_tests.resources.ledger_writer import EVALUATION, NEW, with_account, write_one_of_each
from resources.ledger import Ledger, LedgerChanged, Person
from resources.ledger.database import LedgerDatabase
from resources.ledger.tables import decisions

KINDS = ("evaluation", "name", "promotion", "demotion", "archival", "review", "dossier", "rules")
"""Kinds of rows in the order of `write_one_of_each`."""


@contextmanager
def attacker(url: str) -> Iterator[sa.Connection]:
    """A connection of the tables' owner, who alone may take off the triggers. They are off; each statement commits."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("ALTER TABLE ledger_decisions DISABLE TRIGGER USER"))
        else:
            names = connection.execute(sa.text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
            for name in names.scalars().all():
                connection.execute(sa.text(f"DROP TRIGGER {name}"))
        yield connection
    engine.dispose()


def assert_a_changed_row_is_named(url: str, kind: str) -> None:
    """Write a row of each kind, change that of `kind`, and expect `verify` to name it."""
    ledger, place = Ledger(url), KINDS.index(kind) + 1
    write_one_of_each(ledger)
    ledger.models.verify()
    with attacker(url) as connection:
        changed = connection.execute(
            sa.text(f"UPDATE ledger_decisions SET bundle_digest = 'mine' WHERE place = {place}")
        )
        assert changed.rowcount == 1
    with pytest.raises(LedgerChanged, match=rf"^row {place} \({kind} of m, 20") as found:
        ledger.models.verify()
    assert (found.value.how, found.value.place) == ("changed", place)


def assert_several_writers_make_one_chain(url: str) -> None:
    """Write about four models at once: no place is missing or taken twice."""

    def write(name: str) -> None:
        log = Ledger(url).models
        for number in range(10):
            log.record_evaluation(replace(EVALUATION, model=name, evaluation_digest=str(number)))

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, "abcd"))
    assert Ledger(url).models.verify().place == 40


def assert_times_and_letters_come_back_as_they_were(url: str) -> None:
    """Write times with and without microseconds and in another zone, and letters of several alphabets."""
    log = Ledger(url).models
    zone = timezone(timedelta(hours=5, minutes=30))
    times = [datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2026, 3, 29, 2, 30, 0, 7, tzinfo=zone)]
    said = "Größe \u00e9 and e\u0301, 中文, \U0001f44d, 3 % \\ ' \" {}"
    for number, at in enumerate(times):
        log.record_evaluation(replace(EVALUATION, evaluation_digest=str(number), summary=said), at=at)
        log.promote(
            "m",
            "1",
            "production",
            by=Person.unchecked("Zoë"),
            reason=said,
            bundle_digest="b",
            evaluation_digest="0",
            at=at,
        )
    head = log.verify()
    other = Ledger(url).models
    assert other.verify(head) == head
    assert [one.at for one in other.evaluations("m")] == times
    assert {(one.author, one.reason) for one in other.promotions("m")} == {("Zoë", said)}
    assert {one.summary for one in other.evaluations("m")} == {said}


def assert_several_reads_see_one_state(url: str) -> None:
    """Write between two reads of one transaction: the second read sees what the first saw, and a later one all."""
    ledger = Ledger(url)
    write_one_of_each(ledger)
    database, count = LedgerDatabase(url, 30.0, "local"), sa.select(sa.func.count()).select_from(decisions)
    with database.reading() as connection:
        before = connection.scalar(count)
        ledger.models.record_evaluation(replace(EVALUATION, evaluation_digest="meanwhile"))
        assert connection.scalar(count) == before
    with database.reading() as connection:
        assert connection.scalar(count) == before + 1


def assert_nothing_is_decided_on_a_changed_row(url: str) -> None:
    """Change one row: acceptances, registrations, and changes of accounts name it, and store nothing."""
    ledger = Ledger(url)
    write_one_of_each(ledger)
    ledger.record_verdicts([NEW])
    root = with_account(ledger, "root")
    with attacker(url) as connection:
        connection.execute(sa.text("UPDATE ledger_decisions SET bundle_digest = 'mine' WHERE place = 1"))
    decide: Mapping[str, Callable[[], object]] = {
        "acceptance": lambda: ledger.accept(NEW.table, NEW.key, 1, root, "a strike"),
        "registration": lambda: ledger.models.name_version(
            "m", "new", schema_digest="s", recipe_digest="r", choose=lambda known: "2.0.0"
        ),
        "first rules": lambda: ledger.models.record_first_rules("new", "{}", root),
        "account": lambda: ledger.accounts.add_by_token("bob", root),
    }
    head = ledger.models.head()
    for name, decision in decide.items():
        with pytest.raises(LedgerChanged, match="ml-assets ledger verify") as found:
            decision()
        assert (found.value.how, found.value.place) == ("changed", 1), name
        assert ledger.models.head() == head, name
    assert ledger.histories(NEW.table, [NEW.key])[NEW.key][0].acceptance is None

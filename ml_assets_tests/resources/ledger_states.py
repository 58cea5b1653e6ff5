"""Checks of reads and decisions of the ledger on any database, by its URL."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import sqlalchemy as sa

from ml_assets_tests.resources.ledger_chains import attacker
from ml_assets_tests.resources.ledger_writer import EVALUATION, NEW, with_account, write_one_of_each
from resources.ledger import Ledger, LedgerChanged
from resources.ledger.database import LedgerDatabase
from resources.ledger.tables import decisions


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
        with pytest.raises(LedgerChanged, match=r"nothing was decided, .*: row 1 .* was changed"):
            decision()
        assert ledger.models.head() == head, name
    assert ledger.verdicts_on(NEW.table, NEW.key)[0].acceptance is None

"""The ledger's tables go forward and back without losing a row."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from ml_assets_tests.resources.ledger_writer import NEW, assert_one_of_each, write_one_of_each
from resources.ledger import Ledger, LedgerError, migrations
from resources.ledger.tables import metadata


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sa.Connection]:
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_newest_step_makes_exactly_the_tables_the_code_works_with(
    path: Path, connection: sa.Connection
) -> None:
    Ledger(f"sqlite:///{path}").record_verdicts([NEW])
    context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
    assert compare_metadata(context, metadata) == []
    assert migrations.revision_of(connection) == migrations.NEWEST == migrations.revisions()[-1]


def test_going_back_and_forward_keeps_every_row(path: Path) -> None:
    ledger = Ledger(f"sqlite:///{path}")
    assert ledger.revision() is None
    ledger.record_verdicts([NEW])
    ledger.accept(NEW.table, NEW.key, 1, "ada", "a strike")
    write_one_of_each(ledger)
    for revision in reversed(migrations.revisions()):
        ledger.downgrade(revision)
        assert ledger.revision() == revision
    later = Ledger(f"sqlite:///{path}")
    assert [one.status for one in later.attempts(NEW.table, NEW.key)] == ["accepted"]
    assert_one_of_each(later)
    assert later.revision() == migrations.NEWEST


def test_steps_that_do_not_exist_are_refused(path: Path) -> None:
    ledger = Ledger(f"sqlite:///{path}")
    ledger.record_verdicts([NEW])
    with pytest.raises(LedgerError, match="cannot be downgraded to '0009'; the revisions are 0001"):
        ledger.downgrade("0009")


def test_database_of_a_newer_version_is_left_alone(path: Path) -> None:
    Ledger(f"sqlite:///{path}").record_verdicts([NEW])
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '9999'")
        database.commit()
    with pytest.raises(LedgerError, match=r"has revision 9999.*use the newer version"):
        Ledger(f"sqlite:///{path}").record_verdicts([NEW])
    assert Ledger(f"sqlite:///{path}").revision() == "9999"

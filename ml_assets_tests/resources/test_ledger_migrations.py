"""The ledger's tables go forward and back without losing a row, and installations of old are taken over."""

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

OLD_INSTALLATION = """
CREATE TABLE ledger_acceptances ("table" TEXT NOT NULL, "key" TEXT NOT NULL, attempt INTEGER NOT NULL,
  content_digest TEXT NOT NULL, author TEXT NOT NULL, reason TEXT NOT NULL, at DATETIME NOT NULL,
  PRIMARY KEY ("table", "key", attempt));
CREATE TABLE ledger_promotions (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL,
  version TEXT NOT NULL, alias TEXT NOT NULL, bundle_digest TEXT NOT NULL, author TEXT NOT NULL,
  reason TEXT NOT NULL, at DATETIME NOT NULL);
CREATE TABLE ledger_verdicts ("table" TEXT NOT NULL, "key" TEXT NOT NULL, attempt INTEGER NOT NULL,
  content_digest TEXT NOT NULL, contract_digest TEXT NOT NULL, status TEXT NOT NULL, rows BIGINT NOT NULL,
  body_json TEXT NOT NULL, run_id TEXT NOT NULL, branch TEXT NOT NULL, at DATETIME NOT NULL,
  PRIMARY KEY ("table", "key", attempt));
CREATE INDEX ledger_promotions_by_role ON ledger_promotions (model, alias);
CREATE TRIGGER ledger_verdicts_no_update BEFORE UPDATE ON ledger_verdicts
  BEGIN SELECT RAISE(ABORT, 'ledger_verdicts is append-only'); END;
INSERT INTO ledger_verdicts VALUES ('datasets/flights', '2013-01-01', 1, 'c0', 'rules', 'passed', 800, '{}',
  'run', 'main', '2026-01-01 00:00:00.000000');
"""
"""Tables of the first version, which recorded no migrations."""


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


def test_installation_from_before_the_steps_is_taken_over_with_its_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(OLD_INSTALLATION)
    ledger = Ledger(f"sqlite:///{path}")
    assert ledger.revision() == "0001"
    (row,) = ledger.record_verdicts([NEW])
    assert row.attempt == 2
    assert [one.content_digest for one in ledger.attempts(NEW.table, NEW.key)] == ["c0", "c1"]
    assert ledger.revision() == migrations.NEWEST


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

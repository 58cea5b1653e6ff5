"""The ledger's tables go forward without losing a row."""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.schema import CreateTable

from ml_assets_tests.resources.ledger_writer import NEW
from ml_assets_tests.resources.next_ledger_version import (
    assert_a_failed_upgrade_changes_nothing,
    assert_an_upgrade_keeps_every_row,
)
from resources.ledger import Ledger, LedgerOfAnotherVersion, migrations
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


def test_newest_revision_makes_exactly_the_tables_the_code_works_with(
    path: Path, connection: sa.Connection
) -> None:
    Ledger(f"sqlite:///{path}").record_verdicts([NEW])
    context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
    assert compare_metadata(context, metadata) == []
    assert migrations.revision_of(connection) == migrations.NEWEST == migrations.revisions()[-1]


def test_other_tables_have_another_revision() -> None:
    """A home whose tables have other columns than its revision says ends with a database error, without a remedy.

    If this fails, the tables changed: add a revision. Before the first release, rename the only one instead. Then put
    the digest here.
    """
    tables = "".join(str(CreateTable(table).compile()) for table in metadata.sorted_tables)
    digest = hashlib.sha256(tables.encode()).hexdigest()[:16]
    assert (migrations.NEWEST, digest) == ("r0003", "d863babe5b7c12e4")


def test_an_upgrade_keeps_every_row(path: Path, tmp_path: Path) -> None:
    assert_an_upgrade_keeps_every_row(f"sqlite:///{path}", tmp_path)


def test_a_failed_upgrade_changes_nothing(path: Path, tmp_path: Path) -> None:
    assert_a_failed_upgrade_changes_nothing(f"sqlite:///{path}", tmp_path)


def test_database_of_a_newer_version_is_left_alone(path: Path) -> None:
    _mark(path, "s0001")
    with pytest.raises(LedgerOfAnotherVersion, match=r"ledger\.db has .* s0001, ") as refused:
        Ledger(f"sqlite:///{path}").record_verdicts([NEW])
    assert (refused.value.found, refused.value.is_newer) == ("s0001", True)
    assert Ledger(f"sqlite:///{path}").revision() == "s0001"


@pytest.mark.parametrize("revision", ["0001", "0006", "r0001"])
def test_database_from_before_the_first_release_is_left_alone(path: Path, revision: str) -> None:
    _mark(path, revision)
    with pytest.raises(LedgerOfAnotherVersion, match=r"ledger\.db has .*ML_ASSETS_HOME") as refused:
        Ledger(f"sqlite:///{path}").record_verdicts([NEW])
    assert (refused.value.found, refused.value.is_newer) == (revision, False)
    assert Ledger(f"sqlite:///{path}").revision() == revision


def _mark(path: Path, revision: str) -> None:
    """Make a ledger, and write another revision into it."""
    Ledger(f"sqlite:///{path}").record_verdicts([NEW])
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE {migrations.VERSION_TABLE} SET version_num = ?", (revision,))
        database.commit()

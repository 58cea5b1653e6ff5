"""A version of ml-assets whose ledger has one more revision, and the promise that an upgrade keeps every row."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ml_assets_tests.resources.ledger_writer import NEW, assert_one_of_each, write_one_of_each
from resources.ledger import Ledger, Person, migrations

NEXT = "r0004"
"""Revision beside which this version may go on."""
OTHER = "s0001"
"""Revision that this version must not write beside."""
_REVISION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{revision}", "r0003"


def upgrade():
    op.add_column("ledger_decisions", sa.Column("note", sa.Text, nullable=False, server_default=""))
    {then}
"""


@contextmanager
def next_version(folder: Path, then: str = "", revision: str = NEXT) -> Iterator[None]:
    """Be the next version for the block. Its revision is written into `folder` and ends with the statement `then`."""
    versions = folder / "versions"
    shutil.copytree(migrations.VERSIONS, versions, dirs_exist_ok=True)
    (versions / f"{revision}_note.py").write_text(_REVISION.format(then=then, revision=revision))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "VERSIONS", versions)
        patch.setattr(migrations, "NEWEST", revision)
        yield


def assert_an_upgrade_keeps_every_row(url: str, folder: Path) -> None:
    """Upgrade a ledger with rows to the next version. This version goes on beside it."""
    ledger = Ledger(url)
    assert ledger.revision() is None
    ledger.record_verdicts([NEW])
    ledger.accept(NEW.table, NEW.key, 1, Person.unchecked("ada"), "a strike")
    write_one_of_each(ledger)
    before = _rows(Ledger(url))
    assert ledger.revision() == migrations.NEWEST
    with next_version(folder):
        later = Ledger(url)
        assert _rows(later) == before
        assert later.revision() == NEXT
        assert_one_of_each(later)
        assert [one.number for one in later.record_verdicts([NEW])] == [2]
    beside = Ledger(url)
    assert [one.number for one in beside.record_verdicts([NEW])] == [3]
    assert_one_of_each(beside)
    assert beside.revision() == NEXT


def assert_a_failed_upgrade_changes_nothing(url: str, folder: Path) -> None:
    """The next version fails in the middle of its revision."""
    Ledger(url).record_verdicts([NEW])
    with (
        next_version(folder, then="raise RuntimeError('halfway')"),
        pytest.raises(RuntimeError, match="halfway"),
    ):
        Ledger(url).newest_verdicts(NEW.table)
    later = Ledger(url)
    assert later.revision() == "r0003"
    assert len(later.histories(NEW.table, [NEW.key])[NEW.key]) == 1
    with next_version(folder):
        assert len(Ledger(url).histories(NEW.table, [NEW.key])[NEW.key]) == 1


def _rows(ledger: Ledger) -> list[object]:
    log = ledger.models
    return [*ledger.histories(NEW.table, [NEW.key])[NEW.key], *log.evaluations("m"), *log.promotions("m")]

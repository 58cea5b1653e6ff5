"""The ledger's tables through time: one numbered step per change, up and down, on SQLite and PostgreSQL.

Here: which step a database stands at and how it gets to another. Steps are in `versions/`; alembic runs them and
is imported only where something is to be done, because every process opens the ledger. Not here: what the
tables hold now (`resources.ledger.tables`), which must agree with the newest step (a test compares).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from resources.ledger.errors import LedgerError

if TYPE_CHECKING:
    from alembic.config import Config

NEWEST = "0006"
"""The step this code works with."""
VERSION_TABLE = "ledger_version"
_BEFORE_MIGRATIONS = "0001"
"""Migration at which the first installations stood without recording it."""


def step_of(connection: sa.Connection) -> str | None:
    """The step a database stands at; None where it is empty. Old installations count as the first step."""
    there = sa.inspect(connection)
    if there.has_table(VERSION_TABLE):
        return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return _BEFORE_MIGRATIONS if there.has_table("ledger_verdicts") else None


def upgrade(connection: sa.Connection, to: str = NEWEST) -> None:
    """Bring a database to a step, inside the connection's transaction: all of it happens or nothing.

    Raises `LedgerError` where a newer version of this program made the database.
    """
    found = step_of(connection)
    if found == to:
        return
    from alembic import command

    config = _config(connection)
    if found is not None and found not in steps():
        raise LedgerError(
            f"the ledger stands at step {found}, this version of ml-assets knows steps up to {NEWEST}: use the "
            "newer version, or go back with it first: ml-assets ledger downgrade " + NEWEST
        )
    if found is not None and not sa.inspect(connection).has_table(VERSION_TABLE):
        command.stamp(config, found)
    command.upgrade(config, to)


def downgrade(connection: sa.Connection, to: str) -> None:
    """Take a database back to an earlier step, for an earlier version of this program. Rows are kept.

    Raises `LedgerError` for a step that does not exist or that is not earlier.
    """
    known, found = steps(), step_of(connection)
    if to not in known or found not in known or known.index(to) > known.index(found):
        raise LedgerError(
            f"the ledger stands at step {found} and cannot go back to {to!r}; there are {', '.join(known)}"
        )
    if to == found:
        return
    from alembic import command

    command.downgrade(_config(connection), to)


def steps() -> list[str]:
    """All steps, oldest first."""
    return sorted(path.name.partition("_")[0] for path in (Path(__file__).parent / "versions").glob("0*.py"))


def _config(connection: sa.Connection) -> "Config":
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config

"""Schema migrations of the ledger: one numbered revision per change, for SQLite and PostgreSQL.

Here: the revision of a database, and the upgrade to the newest. Revisions are in `versions/`. Alembic runs them. It is
imported only if there is a revision to run, because every process opens the ledger. Not here: the current tables
(`resources.ledger.tables`), which must match the newest revision (a test compares them).

While a team is upgraded, processes of both versions run. A revision keeps the letter of the one before if processes
that do not know it may go on reading and writing, as after a new column with a default. Any other begins the next
letter.
"""

from pathlib import Path

import sqlalchemy as sa

from resources.ledger.errors import LedgerOfAnotherVersion

NEWEST = "r0003"
"""Revision that this code needs."""
VERSION_TABLE = "ledger_version"
VERSIONS = Path(__file__).parent / "versions"
"""Folder of the revisions."""


def revision_of(connection: sa.Connection) -> str | None:
    """Return the revision of a database; None if it has no ledger yet."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def upgrade(connection: sa.Connection, ledger: str) -> None:
    """Upgrade a database to the newest revision, inside the connection's transaction: completely or not at all.

    Leave a newer revision of the same letter alone. `ledger` names the database in errors. Raise
    `LedgerOfAnotherVersion` for any other unknown revision.
    """
    known, found = revisions(), revision_of(connection)
    if found is not None and found not in known:
        if found > NEWEST and found[0] == NEWEST[0]:
            return
        raise _unknown(found, known, ledger)
    if found == NEWEST:
        return
    from alembic import command, config

    options = config.Config(attributes={"connection": connection})
    options.set_main_option("script_location", str(Path(__file__).parent))
    options.set_main_option("version_locations", str(VERSIONS))
    options.set_main_option("path_separator", "os")
    command.upgrade(options, NEWEST)


def revisions() -> list[str]:
    """Return all revisions, oldest first."""
    return sorted(path.name.partition("_")[0] for path in VERSIONS.glob("[a-z][0-9]*.py"))


def _unknown(found: str, known: list[str], ledger: str) -> LedgerOfAnotherVersion:
    if found > known[-1]:
        return LedgerOfAnotherVersion(
            f"{ledger} has tables of revision {found}, from a newer version of ml-assets. This version knows revisions "
            f"up to {NEWEST}. Use the newer version, or a copy of the database from before its first use",
            found=found,
            is_newer=True,
        )
    return LedgerOfAnotherVersion(
        f"{ledger} has tables of revision {found}, from before the first release of ml-assets. This version cannot "
        "read them. Start anew: with an empty home (ML_ASSETS_HOME); on servers with an empty database "
        "(ML_ASSETS_LEDGER_URL) and a new environment (ML_ASSETS_ENVIRONMENT)",
        found=found,
        is_newer=False,
    )

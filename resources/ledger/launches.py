"""Persons behind the runs and backfills of Dagster, as rows of the chain.

The proxy in front of Dagster's pages writes a row for each run or backfill that a person launched, with the id of the
webserver's answer. A tag of a run proves nothing: anybody who launches a run chooses its tags.
"""

import json
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from resources.ledger.database import LedgerDatabase
from resources.ledger.decision_rows import (
    account_of,
    append,
    every_account,
    kind_of,
    naming_a_changed_row,
    row_of,
    time_of,
)
from resources.ledger.rows import LaunchRow, Person
from resources.ledger.tables import decisions


class Launches:
    """Part of the ledger on launches. Every method may raise `LedgerError`."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def record(self, ids: Sequence[str], by: Person, mutation: str) -> None:
        """Append a row for each run or backfill in `ids`, in one transaction. Raise `IdentityNeeded`."""

        def work(connection: sa.Connection) -> None:
            at: datetime = time_of(connection)
            for one in ids:
                append(connection, LaunchRow(place=0, launched=one, by_mutation=mutation, by=by, at=at))

        self._database.write(work)

    def of(self, launched: str) -> LaunchRow | None:
        """Return the first row about a run or a backfill; None if nobody launched it through the proxy."""
        with self._database.reading() as connection:
            return _of(connection, launched)

    def launcher(self, ids: Sequence[str]) -> Person | None:
        """Return the person behind the first of `ids` that has a row: a run, then those that it continues.

        None if nobody launched any of them, or if the account of that person is no longer in force. A run with a row of
        its own never counts as part of another one: what it continues may be a tag of the run.
        """
        with self._database.reading() as connection:
            row = next((row for one in ids if (row := _of(connection, one)) is not None), None)
            if row is None or account_of(every_account(connection), row.by) is None:
                return None
            return row.by


def _of(connection: sa.Connection, launched: str) -> LaunchRow | None:
    query = sa.select(decisions).where(
        decisions.c.model == "",
        decisions.c.kind == kind_of(LaunchRow),
        decisions.c.facts.contains(json.dumps(launched), autoescape=True),
    )
    with naming_a_changed_row():
        rows = map(row_of, connection.execute(query.order_by(decisions.c.place)).mappings())
        found = [row for row in rows if isinstance(row, LaunchRow)]
    return next((row for row in found if row.launched == launched), None)

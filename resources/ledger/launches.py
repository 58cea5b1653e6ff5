"""Persons behind the runs and backfills of Dagster, as rows of the chain.

The API, and the proxy in front of Dagster's pages, write a row for each run or backfill that a person launched, with
the id of the webserver's answer. A tag of a run proves nothing: anybody who launches a run chooses its tags. The API
also writes a row for each run that a person stops.
"""

import json
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from resources.ledger.database import LedgerDatabase
from resources.ledger.decision_rows import (
    Row,
    account_of,
    append,
    every_account,
    kind_of,
    naming_a_changed_row,
    row_of,
    time_of,
)
from resources.ledger.rows import LaunchRow, Person, StopRow
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

    def record_stop(self, stopped: str, by: Person) -> StopRow:
        """Append a row about the run that a person stops; return it. Raise `IdentityNeeded`."""

        def work(connection: sa.Connection) -> StopRow:
            return append(connection, StopRow(place=0, stopped=stopped, by=by, at=time_of(connection)))

        return self._database.write(work)

    def stop_of(self, run: str) -> StopRow | None:
        """Return the first request of a person to stop a run; None if there was none."""
        with self._database.reading() as connection:
            found = [row for row in _naming(connection, StopRow, run) if row.stopped == run]
        return found[0] if found else None

    def of(self, launched: str) -> LaunchRow | None:
        """Return the first row about a run or a backfill; None if nobody launched it through API or proxy."""
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
    return next((row for row in _naming(connection, LaunchRow, launched) if row.launched == launched), None)


def _naming(connection: sa.Connection, kind: type[Row], text: str) -> list[Row]:
    """Return the rows of a kind with `text` among their facts, oldest first."""
    query = sa.select(decisions).where(
        decisions.c.model == "",
        decisions.c.kind == kind_of(kind),
        decisions.c.facts.contains(json.dumps(text), autoescape=True),
    )
    with naming_a_changed_row():
        rows = map(row_of, connection.execute(query.order_by(decisions.c.place)).mappings())
        return [row for row in rows if isinstance(row, kind)]

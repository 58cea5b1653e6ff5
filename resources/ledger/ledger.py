"""`Ledger`: record and look up verdicts and acceptances. Models: `model_log.py`; the database: `database.py`."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from resources.ledger.accounts import Accounts
from resources.ledger.database import ANSWER_SECONDS, LedgerDatabase
from resources.ledger.decision_rows import append, begin_decision, chained_acceptances, time_of
from resources.ledger.errors import NothingToAccept, refuse_unprintable
from resources.ledger.launches import Launches
from resources.ledger.model_log import ModelLog
from resources.ledger.rows import Acceptance, AcceptedPartition, NewVerdict, Person, VerdictRow
from resources.ledger.tables import UtcTime, acceptances, changes, decisions, verdicts

LOOK_UP = 500
"""Keys per query. SQLite and PostgreSQL limit the parameters of a statement."""
TURN_PATIENCE_SECONDS = 600.0
"""Seconds that a publish waits for other publishes to the same table. It is long, because a publish that lost a race
uploads its files during its turn."""
_COPIED = (verdicts, acceptances, changes, decisions)
_ROWS_AT_A_TIME = 10_000
"""Rows of PostgreSQL that a copy reads at a time."""


class Ledger:
    """Ledger in SQLite (WAL) or PostgreSQL, by an SQLAlchemy address. The first use creates the tables.

    Safe for many processes at once. Every method may raise `LedgerError`.
    """

    def __init__(
        self,
        url: str,
        patience_seconds: float = 30.0,
        *,
        environment: str = "local",
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Use the database at `url`. A write waits `patience_seconds` for other writers, then raises `LedgerBusy`. A
        PostgreSQL that does not answer one call for `answer_seconds` is away.

        The first use records `environment`. If the database belongs to another environment, each use raises
        `LedgerOfAnotherLake`.
        """
        self._database = LedgerDatabase(url, patience_seconds, environment, answer_seconds)
        self.models = ModelLog(self._database)
        """Evaluations and promotions of models."""
        self.accounts = Accounts(self._database)
        """Accounts of the persons who decide."""
        self.launches = Launches(self._database)
        """Persons behind the runs that they launched in Dagster's pages."""

    def copy_to(self, path: Path, environment: str) -> None:
        """Write all rows to a new ledger of another environment, in SQLite at `path`, which must not exist.

        The copy continues the hash chain of its origin, so `verify` accepts it.
        """
        _copy_rows(self._database, LedgerDatabase(f"sqlite:///{path}", 30.0, environment))

    def revision(self) -> str | None:
        """Return the schema revision of the tables; None before the first use."""
        return self._database.revision()

    def turn(
        self, table: str, patience_seconds: float = TURN_PATIENCE_SECONDS
    ) -> AbstractContextManager[None]:
        """Return a context that holds the turn of a table. Only its holder changes main and the ledger for that table.

        Main and the newest verdict agree because both change within one turn. Not reentrant. Raise `LedgerBusy` after
        `patience_seconds`, and `LedgerUnavailable` if the server lost the turn: then repeat the work of the turn. Names
        such as `canary/<model>` are turns of other work, which has no table.
        """
        return self._database.turn(table, patience_seconds)

    def record_verdicts(self, new: Sequence[NewVerdict], at: datetime | None = None) -> list[VerdictRow]:
        """Append one verdict per row, all in one transaction. Return the rows with their numbers."""
        moment = at or datetime.now(UTC)

        def work(connection: sa.Connection) -> list[VerdictRow]:
            latest: dict[tuple[str, str], int] = {}
            for table, keys in _keys_by_table(new).items():
                for some in _chunks(keys):
                    query = (
                        sa.select(verdicts.c.key, sa.func.max(verdicts.c.number))
                        .where(verdicts.c.table == table, verdicts.c.key.in_(some))
                        .group_by(verdicts.c.key)
                    )
                    latest.update({(table, key): number for key, number in connection.execute(query)})
            rows: list[VerdictRow] = []
            for one in new:
                number = latest.get((one.table, one.key), 0) + 1
                latest[one.table, one.key] = number
                rows.append(VerdictRow(**vars(one), number=number, at=moment))
            if rows:
                values = [
                    {name: value for name, value in vars(row).items() if name != "acceptance"} for row in rows
                ]
                connection.execute(sa.insert(verdicts), values)
                _record_changes(connection, [(row.table, row.key) for row in rows], moment)
            return rows

        return self._database.write(work)

    def newest_verdicts(self, table: str, keys: Iterable[str] | None = None) -> dict[str, VerdictRow]:
        """Return key → newest verdict, for those of `keys` that have a verdict (None: all keys of the table)."""
        found: dict[str, VerdictRow] = {}
        chunks = [None] if keys is None else _chunks(keys)
        if not chunks:
            return found
        with self._database.reading() as connection:
            for some in chunks:
                query = _NEWEST if some is None else _NEWEST_OF_KEYS
                for row in connection.execute(query, {"of": table, "keys": some} if some else {"of": table}):
                    found[row.key] = _verdict_row(row)
        return found

    def histories(self, table: str, keys: Iterable[str]) -> dict[str, list[VerdictRow]]:
        """Return key → all verdicts on it, oldest first, for those of `keys` that have a verdict."""
        found: dict[str, list[VerdictRow]] = {}
        with self._database.reading() as connection:
            for some in _chunks(keys):
                for row in connection.execute(_OF_KEYS, {"of": table, "keys": some}):
                    found.setdefault(row.key, []).append(_verdict_row(row))
        return found

    def find_verdicts(
        self, table: str, contents: Mapping[str, str], contract_digest: str
    ) -> dict[str, VerdictRow]:
        """Return key → newest verdict with this content and this contract, for content that was validated before.

        `contents` is key → content digest. The key counts, because the same content may be right for one partition and
        wrong for another.
        """
        found: dict[str, VerdictRow] = {}
        with self._database.reading() as connection:
            for some in _chunks(contents):
                digests = sorted({contents[key] for key in some})
                asked = {"of": table, "rules": contract_digest, "keys": some, "digests": digests}
                for row in connection.execute(_BY_CONTENT_AND_RULES, asked):
                    if row.content_digest == contents[row.key]:
                        found[row.key] = _verdict_row(row)
        return found

    def verdicts_of(
        self, table: str, contents: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], VerdictRow]:
        """Return (key, content digest) → newest verdict with exactly that content, under any contract."""
        wanted = set(contents)
        found: dict[tuple[str, str], VerdictRow] = {}
        with self._database.reading() as connection:
            for some in _chunks(digest for _, digest in wanted):
                for row in connection.execute(_BY_CONTENT, {"of": table, "digests": some}):
                    if (row.key, row.content_digest) in wanted:
                        found[row.key, row.content_digest] = _verdict_row(row)
        return found

    def volumes(self, table: str) -> dict[str, int]:
        """Return key → rows of its newest verdict that passed, warned or was accepted, sorted by key."""
        with self._database.reading() as connection:
            return {row.key: row.rows for row in connection.execute(_VOLUMES, {"of": table})}

    def rejections(self, table: str) -> dict[str, VerdictRow]:
        """Return key → newest verdict, for the partitions whose newest verdict is a rejection, sorted by key."""
        with self._database.reading() as connection:
            return {row.key: _verdict_row(row) for row in connection.execute(_REJECTED, {"of": table})}

    def newest_usable(self, table: str, until: datetime) -> datetime | None:
        """Return the moment (UTC), up to `until`, of the latest of the newest verdicts of the partitions of `table`
        that is no rejection; None without any."""
        with self._database.reading() as connection:
            return connection.execute(_NEWEST_USABLE, {"of": table, "until": until}).scalar()

    def newest_moment(self, table: str) -> datetime | None:
        """Return the moment (UTC) of the latest verdict on a partition of `table`; None without verdicts."""
        query = sa.select(sa.func.max(verdicts.c.at)).where(verdicts.c.table == table)
        with self._database.reading() as connection:
            return connection.execute(query).scalar()

    def newest_change(self, table: str) -> int:
        """Return the place of the newest verdict or acceptance of `table`; 0 without any. Its cost does not depend on
        their number."""
        with self._database.reading() as connection:
            return connection.scalar(_NEWEST_CHANGE, {"of": table}) or 0

    def changed_since(self, table: str, place: int) -> set[str]:
        """Return the keys of `table` with a verdict or an acceptance after `place`, from `newest_change`."""
        with self._database.reading() as connection:
            return set(connection.scalars(_CHANGED_SINCE, {"of": table, "place": place}))

    def acceptances(self, table: str | None = None) -> list[AcceptedPartition]:
        """Return the acceptances of `table`, or of all tables, oldest first, with the proof behind each name."""
        with self._database.reading() as connection:
            return [one for one in chained_acceptances(connection) if table is None or one.table == table]

    def accept(
        self,
        table: str,
        key: str,
        number: int,
        by: Person,
        reason: str,
        at: datetime | None = None,
        level: str = "",
    ) -> Acceptance:
        """Accept what verdict `number` rejected; `level`: as part of a new level of the number of rows.

        Raise `NothingToAccept` unless it is the newest verdict on the partition, and a rejection. Raise `NotPrintable`,
        and `IdentityNeeded` if the ledger has accounts and `by` acts for none in force.
        A second acceptance of the same verdict changes nothing and returns the first.
        """
        if not reason.strip():
            raise NothingToAccept(f"accepting {table} {key} needs a reason for the log")
        refuse_unprintable(author=by.name, reason=reason)

        def work(connection: sa.Connection) -> Acceptance:
            begin_decision(connection)
            query = _with_acceptance().where(verdicts.c.table == table, verdicts.c.key == key)
            found = connection.execute(query.order_by(verdicts.c.number.desc()).limit(1)).first()
            if found is None:
                raise NothingToAccept(f"{table} has no verdict for {key}: materialize that partition first")
            row = _verdict_row(found)
            if row.number != number:
                raise NothingToAccept(
                    f"verdict {row.number} on {table} {key} is newer than verdict {number}. Look at the errors of "
                    "the newer verdict, then accept it"
                )
            if row.acceptance is not None:
                return row.acceptance
            if not row.blocks:
                raise NothingToAccept(
                    f"{table} {key} is not rejected (verdict {row.number}: {row.status}): nothing to accept"
                )
            acceptance = Acceptance(
                table=table,
                key=key,
                number=row.number,
                content_digest=row.content_digest,
                author=by.name,
                reason=reason,
                at=at or time_of(connection),
            )
            connection.execute(sa.insert(acceptances), vars(acceptance))
            _record_changes(connection, [(table, key)], acceptance.at)
            content = {name: value for name, value in vars(acceptance).items() if name != "author"}
            append(connection, AcceptedPartition(place=0, by=by, level=level, **content))
            return acceptance

        return self._database.write(work)


def _record_changes(
    connection: sa.Connection, partitions: Sequence[tuple[str, str]], moment: datetime
) -> None:
    """Append a change for each (table, key), in the transaction that stores it."""
    places: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for table, key in partitions:
        if table not in places:
            places[table] = connection.scalar(_NEWEST_CHANGE, {"of": table}) or 0
        places[table] += 1
        rows.append({"table": table, "place": places[table], "key": key, "at": moment})
    connection.execute(sa.insert(changes), rows)


def _same_number() -> sa.ColumnElement[bool]:
    return (
        (verdicts.c.table == acceptances.c.table)
        & (verdicts.c.key == acceptances.c.key)
        & (verdicts.c.number == acceptances.c.number)
    )


def _with_acceptance() -> sa.Select[Any]:
    names = ("author", "reason", "at")
    theirs = [acceptances.c[name].label(f"accepted_{name}") for name in names]
    return sa.select(verdicts, *theirs).select_from(verdicts).outerjoin(acceptances, _same_number())


# Statements of the guard and of publishing, built once: building one took longer than SQLite's answer.
_ANY_KEY = verdicts.c.table == sa.bindparam("of")
_SOME_KEYS = _ANY_KEY & verdicts.c.key.in_(sa.bindparam("keys", expanding=True))
_SOME_CONTENTS = verdicts.c.content_digest.in_(sa.bindparam("digests", expanding=True))


def _newest(chosen: sa.ColumnElement[bool]) -> sa.Select[Any]:
    columns = verdicts.c.table, verdicts.c.key
    newest = (
        sa.select(*columns, sa.func.max(verdicts.c.number).label("number")).where(chosen).group_by(*columns)
    )
    one = newest.subquery()
    same = (
        (verdicts.c.table == one.c.table)
        & (verdicts.c.key == one.c.key)
        & (verdicts.c.number == one.c.number)
    )
    return _with_acceptance().join(one, same)


_OF_KEYS = _with_acceptance().where(_SOME_KEYS).order_by(verdicts.c.number)
_NEWEST, _NEWEST_OF_KEYS = _newest(_ANY_KEY), _newest(_SOME_KEYS)
_BY_CONTENT = _with_acceptance().where(_ANY_KEY, _SOME_CONTENTS).order_by(verdicts.c.number)
_BY_CONTENT_AND_RULES = (
    _with_acceptance()
    .where(_SOME_KEYS, _SOME_CONTENTS, verdicts.c.contract_digest == sa.bindparam("rules"))
    .order_by(verdicts.c.number)
)
_NEWEST_CHANGE = sa.select(sa.func.max(changes.c.place)).where(changes.c.table == sa.bindparam("of"))
_CHANGED_SINCE = sa.select(changes.c.key).where(
    changes.c.table == sa.bindparam("of"), changes.c.place > sa.bindparam("place")
)
_REJECTED = _NEWEST.where(verdicts.c.status == "rejected", acceptances.c.number.is_(None)).order_by(
    verdicts.c.key
)
_STATES = _NEWEST.subquery()
_NEWEST_USABLE = sa.select(sa.func.max(_STATES.c.at)).where(
    (_STATES.c.status != "rejected") | _STATES.c.accepted_author.is_not(None),
    _STATES.c.at <= sa.bindparam("until", type_=UtcTime),
)
_VOLUMES = (
    sa.select(verdicts.c.key, verdicts.c.rows)
    .select_from(verdicts.outerjoin(acceptances, _same_number()))
    .where(_ANY_KEY, (verdicts.c.status != "rejected") | acceptances.c.number.is_not(None))
    .order_by(verdicts.c.key, verdicts.c.number)
)


def _verdict_row(row: sa.Row[Any]) -> VerdictRow:
    facts = dict(row._mapping)  # pyright: ignore[reportPrivateUsage] - its documented name
    author, reason, at = (facts.pop(f"accepted_{name}") for name in ("author", "reason", "at"))
    if author is None:
        return VerdictRow(**facts)
    shared = {name: facts[name] for name in ("table", "key", "number", "content_digest")}
    facts["status"] = "accepted"
    return VerdictRow(**facts, acceptance=Acceptance(**shared, author=author, reason=reason, at=at))


def _keys_by_table(rows: Iterable[NewVerdict]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.table, set()).add(row.key)
    return found


def _chunks(keys: Iterable[str]) -> list[list[str]]:
    every = sorted(set(keys))
    return [every[start : start + LOOK_UP] for start in range(0, len(every), LOOK_UP)]


def _copy_rows(origin: LedgerDatabase, copy: LedgerDatabase) -> None:
    """Write all rows of `origin`, of one state, to the empty SQLite ledger `copy`."""
    with origin.reading() as connection:
        copy.write(lambda _: None)  # creates the tables
        source, target = origin.sqlite_file, copy.sqlite_file
        if source is not None and target is not None:
            _copy_file(source, target)
            return
        for table in _COPIED:
            found = connection.execution_options(yield_per=_ROWS_AT_A_TIME).execute(sa.select(table))
            for some in found.mappings().partitions(_ROWS_AT_A_TIME):
                rows = [dict(row) for row in some]
                copy.write(lambda to, table=table, rows=rows: to.execute(sa.insert(table), rows))


def _copy_file(source: Path, target: Path) -> None:
    """Copy between two SQLite files inside SQLite, which takes a third of the time of rows in Python."""
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute("ATTACH DATABASE ? AS origin", (str(source),))
        connection.execute("BEGIN IMMEDIATE")
        for table in _COPIED:
            columns = ", ".join(f'"{column.name}"' for column in table.columns)
            connection.execute(
                f"INSERT INTO main.{table.name} ({columns}) SELECT {columns} FROM origin.{table.name}"
            )
        connection.execute("COMMIT")

"""Database of the ledger: opening it, and transactions with retries after other writers and restarts of the server.

Opening upgrades the tables and checks the environment. Other SQL belongs in `ledger.py` and `model_log.py`, the history
of the tables in `migrations`.
"""

import hashlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from resources.addresses import Address, with_driver
from resources.database_errors import code_of, is_away
from resources.files import take_lock
from resources.ledger import migrations
from resources.ledger.errors import LedgerBusy, LedgerError, LedgerOfAnotherLake, LedgerUnavailable
from resources.ledger.tables import environments
from resources.retry import patiently

Answer = TypeVar("Answer")

_LOST_RACES = ("23505", "40001", "40P01")
"""Codes of PostgreSQL: unique violation (two writers chose the same key), serialization failure, deadlock."""
_OPENING_TURN = 0x6C656467
"""Key of the advisory lock under which one process at a time runs migrations ("ledg")."""
_TURN_POLL_SECONDS = (0.01, 0.05)
"""Range of the random pause, in seconds, between two tries to take a turn that another process holds."""
_HELD_BY = sa.select(environments.c.environment)
_CONNECT_SECONDS = 5
_STATEMENT_SECONDS = 60
_KEPT_CONNECTIONS, _MOST_CONNECTIONS = 2, 10
"""Connections of a process to PostgreSQL, beside those of turns."""
_POOL_SECONDS = 30.0
"""Time to wait for one of them."""
ANSWER_SECONDS = 70.0
"""Time limit of one call to PostgreSQL, in seconds, after which its connection is closed. The server ends a statement,
which may wait for others, after 60 s; so only a server that is frozen or unreachable takes longer."""


class LedgerDatabase:
    """One database. The first use opens it and creates its tables. Safe for threads, processes and forks.

    Verdicts are about the main of one lake. With two lakes, a passing day of one would cover the rejected day of the
    other. So the first process records its environment, and processes of other environments are refused.
    """

    def __init__(
        self, url: str, patience_seconds: float, environment: str, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._answer_seconds = answer_seconds
        self._address = Address(url)
        address = sa.make_url(with_driver(url))
        self._url = address
        self._is_sqlite = address.get_backend_name() == "sqlite"
        self._patience = patience_seconds
        self._environment = environment
        self._lock = threading.Lock()
        self._ready: sa.Engine | None = None
        self._writing = threading.local()

    @property
    def sqlite_file(self) -> Path | None:
        """File of the database; None for PostgreSQL."""
        return Path(self._url.database) if self._is_sqlite and self._url.database else None

    @contextmanager
    def reading(self) -> Generator[sa.Connection]:
        """Yield a connection in one transaction, so that several reads see one state. It cannot write.

        Inside the `work` of a `write`, it is the transaction of that write: no other writer changes the rows read there
        before the write is stored.
        """
        if (own := getattr(self._writing, "connection", None)) is not None:
            yield own
            return
        try:
            with self._patiently(lambda: _for_reading(self._engine())) as connection, connection.begin():
                yield connection
        except exc.DBAPIError as error:
            if is_away(error):
                raise LedgerUnavailable(
                    f"{self}: the connection broke while reading ({self._first_line(error)}). Run it again"
                ) from error
            if isinstance(error, exc.OperationalError):
                raise self._unreadable(error) from error
            raise

    def write(self, work: Callable[[sa.Connection], Answer], *, still: Sequence[sa.Table] = ()) -> Answer:
        """Run `work` in one transaction, all or nothing; return its result. Meanwhile no other process writes to the
        tables `still`.

        `work` runs again if the server went away before the commit, or if another writer was faster: on SQLite it
        holds the lock, on PostgreSQL both chose the same key. Raise `LedgerBusy` or `LedgerUnavailable` when the
        retries run out.
        """

        def transaction() -> Answer:
            with _for_writing(self._engine()) as connection:
                running = connection.begin()
                try:
                    for table in () if self._is_sqlite else still:  # SQLite has one writer at a time anyway
                        connection.execute(sa.text(f"LOCK TABLE {table.name} IN SHARE MODE"))
                    self._writing.connection = connection
                    answer = work(connection)
                except BaseException:
                    running.rollback()
                    raise
                finally:
                    self._writing.connection = None
                self._commit(running)
                return answer

        return self._patiently(transaction)

    @contextmanager
    def turn(self, name: str, patience_seconds: float) -> Generator[None]:
        """Hold the turn `name` for the block. One thread of one process on any host has it at a time. Not reentrant.

        A kill of the process ends the turn, too. Raise `LedgerBusy` if others hold it for longer than
        `patience_seconds`, and `LedgerUnavailable` if the connection that held it broke.
        """
        waiting = self._file_turn if self._is_sqlite else self._server_turn
        with waiting(name, time.monotonic() + patience_seconds):
            yield

    @contextmanager
    def _file_turn(self, name: str, end: float) -> Generator[None]:
        folder = Path(f"{self._url.database}.turns")
        folder.mkdir(parents=True, exist_ok=True)
        # Each holder opens the file itself: threads that share an open file would share its lock.
        with (folder / name.replace("/", "-")).open("a") as file:
            self._wait(lambda: take_lock(file.fileno(), waits=False), name, end)
            yield

    @contextmanager
    def _server_turn(self, name: str, end: float) -> Generator[None]:
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
        asked = sa.select(sa.func.pg_try_advisory_xact_lock(key))
        self._engine()  # makes the tables
        connection = self._patiently(lambda: self._turns.connect())
        try:
            with self._naming_a_lost_turn(name):
                # The lock belongs to this transaction: it works behind a pooler, and ends with the connection.
                running = connection.begin()
                self._wait(lambda: bool(connection.scalar(asked)), name, end)
            yield
            with self._naming_a_lost_turn(name):
                running.commit()
        finally:
            with suppress(
                exc.DBAPIError
            ):  # the server went away: the lock ended with it, and the block's error counts
                connection.close()

    @contextmanager
    def _naming_a_lost_turn(self, name: str) -> Generator[None]:
        try:
            yield
        except exc.DBAPIError as error:
            raise LedgerUnavailable(
                f"{self}: the connection that held the lock on {name} broke ({self._first_line(error)}). Run the step "
                "again: it first looks up the stored rows"
            ) from error

    def _wait(self, is_ours: Callable[[], bool], name: str, end: float) -> None:
        while not is_ours():
            if time.monotonic() > end:
                raise LedgerBusy(
                    f"{self}: another process holds the lock on {name}. Try again when it has finished; if it does "
                    "not finish, look for a stopped process"
                )
            time.sleep(random.uniform(*_TURN_POLL_SECONDS))

    def revision(self) -> str | None:
        """Return the schema revision of the tables; None if there are none."""
        with self._made.connect() as connection:
            return migrations.revision_of(connection)

    def _engine(self) -> sa.Engine:
        with self._lock:
            if self._ready is None:
                self._ready = self._patiently(self._open)
            return self._ready

    def _commit(self, running: sa.RootTransaction) -> None:
        try:
            running.commit()
        except exc.DBAPIError as error:
            if error.connection_invalidated and not self._is_sqlite:
                # The commit may have succeeded or not. A retry could store the rows twice.
                raise LedgerUnavailable(
                    f"{self}: the connection broke while storing ({self._first_line(error)}). Run the step again: it "
                    "first looks up the stored rows"
                ) from error
            raise

    def _patiently(self, work: Callable[[], Answer]) -> Answer:
        def may_pass(error: BaseException) -> bool:
            return isinstance(error, exc.DBAPIError) and (is_away(error) or self._is_lost_race(error))

        try:
            return patiently(work, may_pass, lambda _: self._patience, first_pause=0.02, longest_pause=0.5)
        except exc.DBAPIError as error:
            if may_pass(error):
                raise self._at_its_end(error) from error
            if isinstance(error, exc.OperationalError):
                raise self._unreadable(error) from error
            raise
        except exc.TimeoutError as error:
            raise LedgerBusy(
                f"{self}: this process used all its {_MOST_CONNECTIONS} connections for {_POOL_SECONDS:g} s. Try again"
            ) from error

    def _unreadable(self, error: exc.DBAPIError) -> LedgerError:
        """Return the error of a database that answers and is not the ledger, such as a file that someone deleted."""
        return LedgerError(
            f"{self}: {self._first_line(error)}: check ML_ASSETS_LEDGER_URL, and that the ledger is still there"
        )

    def _at_its_end(self, error: exc.DBAPIError) -> LedgerError:
        if is_away(error):
            return LedgerUnavailable(
                f"{self} does not answer for {self._patience:g} s ({self._first_line(error)}): check that the server "
                "runs, and ML_ASSETS_LEDGER_URL; then run it again"
            )
        return LedgerBusy(
            f"{self} could not be written for {self._patience:g} s, because another program holds its lock "
            f"({self._first_line(error)}). Try again when that program has finished"
        )

    def _is_lost_race(self, error: exc.DBAPIError) -> bool:
        if self._is_sqlite:
            return "locked" in str(error.orig) or "busy" in str(error.orig)
        return code_of(error.orig) in _LOST_RACES

    def _open(self) -> sa.Engine:
        engine = self._made
        with engine.connect() as connection:
            is_current = migrations.revision_of(connection) == migrations.NEWEST
            is_ours = is_current and connection.scalar(_HELD_BY) == self._environment
        if not is_ours:
            with _for_writing(engine) as connection, connection.begin():
                if not self._is_sqlite:  # one process at a time, even if there are no tables yet
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OPENING_TURN)))
                self._prepare(connection)
        return engine

    def _prepare(self, connection: sa.Connection) -> None:
        """Upgrade the tables. Take the ledger for this environment if no environment has it."""
        migrations.upgrade(connection, str(self))
        holder = connection.scalar(_HELD_BY)
        if holder is None:
            facts = {"id": 1, "environment": self._environment, "at": datetime.now(UTC)}
            connection.execute(sa.insert(environments), facts)
        elif holder != self._environment:
            raise LedgerOfAnotherLake(
                f"{self} belongs to environment {holder!r}, and ML_ASSETS_ENVIRONMENT is {self._environment!r}: give "
                "each environment a home (ML_ASSETS_HOME) or a ledger (ML_ASSETS_LEDGER_URL) of its own"
            )

    @cached_property
    def _made(self) -> sa.Engine:
        """Engine, which connects at its first use. The tables may be missing."""
        if not self._is_sqlite:
            engine = self._on_server(
                pool_pre_ping=True,
                pool_size=_KEPT_CONNECTIONS,
                max_overflow=_MOST_CONNECTIONS - _KEPT_CONNECTIONS,
                pool_timeout=_POOL_SECONDS,
            )
            _forget_after_fork(weakref.ref(engine))
            return engine
        if self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        # No pool: a connection must not be used after a fork.
        engine = sa.create_engine(self._url, poolclass=sa.NullPool, connect_args={"timeout": self._patience})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    @cached_property
    def _turns(self) -> sa.Engine:
        """Engine of the connections that await or hold a turn, each its own.

        Who has a turn needs a connection for the work, too. When both came from one pool, twenty impatient requests to
        the API had all of it, and each waited for another connection.
        """
        return self._on_server(poolclass=sa.NullPool)

    def _on_server(self, **pool: Any) -> sa.Engine:
        """Return an engine for PostgreSQL with this pool."""
        from resources.ledger.bounded_connection import BoundedConnection

        bounds = {
            "connection_factory": partial(BoundedConnection, answer_seconds=self._answer_seconds),
            "connect_timeout": _CONNECT_SECONDS,
            "keepalives_idle": 30,
            "options": f"-c statement_timeout={_STATEMENT_SECONDS * 1000}",
        }
        return sa.create_engine(self._url, connect_args=bounds, **pool)

    def _first_line(self, error: exc.DBAPIError) -> str:
        return self._address.hide_in(str(error.orig).partition("\n")[0])

    def __str__(self) -> str:
        return f"ledger {self._address}"


def _forget_after_fork(engine: weakref.ref[sa.Engine]) -> None:
    """Let a forked child open its own connections. Otherwise it would share those of its parent."""

    def forget() -> None:
        if (opened := engine()) is not None:
            opened.dispose(close=False)

    os.register_at_fork(after_in_child=forget)


def _for_writing(engine: sa.Engine) -> sa.Connection:
    return engine.connect().execution_options(begins_with="IMMEDIATE")


def _for_reading(engine: sa.Engine) -> sa.Connection:
    """Return a connection whose transaction sees one state. SQLite's do so anyway; PostgreSQL's default does not."""
    connection = engine.connect()
    if engine.dialect.name == "postgresql":
        # The driver sends both with BEGIN. The pool puts them back.
        connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return connection


def _prepare_sqlite(connection: Any, record: object) -> None:
    # Let SQLAlchemy send BEGIN (`_begin_sqlite`). The driver would delay it.
    connection.isolation_level = None
    cursor = connection.cursor()
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        # If two processes open a new database at once, SQLite refuses one without waiting; `_patiently` retries.
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # Readers begin deferred and never wait. Writers take the lock first, so that no other writer changes their rows.
    mode = connection.get_execution_options().get("begins_with", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")

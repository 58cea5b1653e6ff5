"""Opening the ledger's database, and transactions that survive other writers. SQL belongs in `ledger.py`."""

import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from resources.ledger.errors import LedgerBusy, LedgerError
from resources.ledger.tables import metadata

Answer = TypeVar("Answer")


class Database:
    """One database, opened and given its tables on first use; safe for threads, processes and forks."""

    def __init__(self, url: str, patience_seconds: float) -> None:
        self._url = sa.make_url(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._ready: sa.Engine | None = None

    @contextmanager
    def reading(self) -> Generator[sa.Connection]:
        """A connection in one transaction, so that several reads see one state."""
        with self._engine().connect() as connection, connection.begin():
            yield connection

    def write(self, work: Callable[[sa.Connection], Answer]) -> Answer:
        """Run `work` in one transaction: all of it happens or nothing.

        `work` runs again where another writer came first: on SQLite the lock is not to be had, on PostgreSQL
        both chose the same key. `LedgerBusy` when patience is at its end.
        """
        engine = self._engine()

        def transaction() -> Answer:
            with _for_writing(engine) as connection, connection.begin():
                return work(connection)

        return self._patiently(transaction)

    def _engine(self) -> sa.Engine:
        with self._lock:
            if self._ready is None:
                self._ready = self._patiently(self._open)
            return self._ready

    def _patiently(self, work: Callable[[], Answer]) -> Answer:
        end = time.monotonic() + self._patience
        while True:
            try:
                return work()
            except exc.DBAPIError as error:
                if not self._is_lost_race(error):
                    if isinstance(error, exc.OperationalError):
                        raise LedgerError(f"ledger {self._url.render_as_string()}: {error.orig}") from error
                    raise
                if time.monotonic() > end:
                    raise LedgerBusy(
                        f"ledger {self._url.render_as_string()}: not to be written for {self._patience:g} s, "
                        f"another program holds it ({error.orig}). Try again when that one is done"
                    ) from error
                time.sleep(random.uniform(0.01, 0.05))

    def _is_lost_race(self, error: exc.DBAPIError) -> bool:
        if self._is_sqlite:
            return "locked" in str(error.orig) or "busy" in str(error.orig)
        # psycopg and psycopg2 name the code of a violated key differently.
        code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        return code == "23505"

    def _open(self) -> sa.Engine:
        if not self._is_sqlite:
            engine = sa.create_engine(self._url, pool_pre_ping=True)
            metadata.create_all(engine)
            return engine
        if self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        # No pool: a connection that crosses a fork would be shared by two processes.
        engine = sa.create_engine(self._url, poolclass=sa.NullPool, connect_args={"timeout": self._patience})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        with _for_writing(engine) as connection, connection.begin():
            metadata.create_all(connection)
        return engine


def _for_writing(engine: sa.Engine) -> sa.Connection:
    return engine.connect().execution_options(begins_with="IMMEDIATE")


def _prepare_sqlite(connection: Any, record: object) -> None:
    # SQLAlchemy then sends BEGIN itself (`_begin_sqlite`), which the driver would otherwise delay.
    connection.isolation_level = None
    cursor = connection.cursor()
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        # Where two processes come first at once, one is refused at once, without waiting: `_patiently`.
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # Readers begin deferred and never wait; writers take the lock first, so that what they read stays true.
    mode = connection.get_execution_options().get("begins_with", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")

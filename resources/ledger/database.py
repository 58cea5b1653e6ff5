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

from resources.ledger.errors import LedgerBusy
from resources.ledger.tables import metadata

Answer = TypeVar("Answer")

BUSY_SECONDS = 30
"""How long one statement waits for another writer on SQLite."""
ATTEMPTS = 10
"""How often a write that lost a race is made again, with jittered pauses from 10 ms up."""


class Database:
    """One database, opened and given its tables on first use; safe for threads, processes and forks."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._lock = threading.Lock()
        self._ready: sa.Engine | None = None

    @contextmanager
    def reading(self) -> Generator[sa.Connection]:
        """A connection in one transaction, so that several reads see one state."""
        with self._engine().connect() as connection, connection.begin():
            yield connection

    def write(self, work: Callable[[sa.Connection], Answer]) -> Answer:
        """Run `work` in one transaction; all of it happens or nothing. `LedgerBusy` after `ATTEMPTS`.

        `work` may run several times: a race with another writer shows as a violated key on PostgreSQL, and
        as a lock on SQLite.
        """
        engine = self._engine()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with _for_writing(engine) as connection, connection.begin():
                    return work(connection)
            except (exc.IntegrityError, exc.OperationalError) as error:
                if attempt == ATTEMPTS:
                    raise LedgerBusy(
                        f"could not write to ledger {self._url.render_as_string()} in {attempt} attempts: "
                        f"{error.orig}. If no other program holds it, check disk and permissions; try again"
                    ) from error
                time.sleep(random.uniform(0.5, 1.5) * 0.01 * 2 ** min(attempt, 6))
        raise AssertionError("unreachable")

    def _engine(self) -> sa.Engine:
        with self._lock:
            if self._ready is None:
                self._ready = self._open()
            return self._ready

    def _open(self) -> sa.Engine:
        if not self._is_sqlite:
            engine = sa.create_engine(self._url, pool_pre_ping=True)
            metadata.create_all(engine)
            return engine
        if self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        # No pool: a connection that crosses a fork would be shared by two processes.
        engine = sa.create_engine(
            self._url,
            poolclass=sa.NullPool,
            connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        )
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
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # Readers begin deferred and never wait; writers take the lock first, so that what they read stays true.
    mode = connection.get_execution_options().get("begins_with", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")

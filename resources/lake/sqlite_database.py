"""SQLite file of a local repository: one connection, its transactions, the wait for its locks.

Belongs here: opening, locking, durability. Does not: the meaning of the tables (`refs.py`).

In WAL mode readers never wait, one process writes at a time, and a killed process leaves nothing to clean up.
`BEGIN IMMEDIATE` takes the write lock before the first read, so no other process changes the rows that a writer has
read before it commits.
"""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Generator
from pathlib import Path

from resources.files import file_at
from resources.lake.store import LakeBusy, LakeError
from resources.retry import patiently

_FORMAT = 2
"""Format of the file. In format 2 a tree's list of ranges is cut into pages."""
_WAITS = 10
"""Waits of SQLite itself within the patience of a writer. Between them other writers get a chance."""


class SQLiteDatabase:
    """Transactions on one SQLite file. Safe for any number of threads and processes on one machine.

    The file has to be on a local disk: SQLite's locks do not hold over NFS.
    """

    def __init__(self, path: Path, schema: str, patience: float) -> None:
        """Open or create `path`; `schema` is a script of `CREATE … IF NOT EXISTS`.

        A writer waits up to `patience` seconds for others, then raises `LakeBusy`.
        """
        self._path = path
        self._schema = schema
        self._patience = patience
        self._lock = threading.Lock()
        self._connection = self._open()

    @contextlib.contextmanager
    def reading(self) -> Generator[sqlite3.Connection, None, None]:
        """Open a read transaction: a consistent view of the database at its begin. Waits for no writer."""
        with self._lock, self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Generator[sqlite3.Connection, None, None]:
        """Open an exclusive write transaction, all or nothing. Raise `LakeBusy` if others hold the lock too long.

        With `durable=False` the write survives a kill of this process at once, but a power cut only after the next
        durable write.
        """
        with self._lock:
            connection = self._current()
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with self._transaction("BEGIN IMMEDIATE"):
                yield connection

    @property
    def connection(self) -> sqlite3.Connection:
        """Connection of the transaction in progress."""
        return self._connection

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Generator[sqlite3.Connection, None, None]:
        connection = self._current()
        try:
            self._patiently(connection, begin)
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            # After a full disk SQLite has already rolled the transaction back.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _current(self) -> sqlite3.Connection:
        # SQLite forbids the use of a connection after a fork. A connection outlives its file: another one at the path
        # is that of a folder which was moved away and made anew, or restored.
        if self._owner != os.getpid() or file_at(self._path) not in (None, self._file):
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=self._patience / _WAITS,
            isolation_level=None,
            check_same_thread=False,
        )
        self._owner = os.getpid()
        weakref.finalize(self, _close, connection, self._owner)
        # The change to WAL needs an exclusive lock, and SQLite's own timeout does not apply to it.
        self._patiently(connection, "PRAGMA journal_mode=WAL")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, _FORMAT):
            connection.close()
            raise LakeError(
                f"{self._path} was written in format {found}, this version reads format {_FORMAT}: use the version "
                "that wrote it, or move the folder away and materialize its tables again."
            )
        if found == 0:
            self._patiently(connection, "BEGIN IMMEDIATE")
            for statement in self._schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={_FORMAT}")
            connection.execute("COMMIT")
        self._file = file_at(self._path)
        return connection

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> None:
        try:
            patiently(
                lambda: connection.execute(statement),
                _is_busy,
                lambda _: self._patience,
                first_pause=0.01,
                longest_pause=0.1,
            )
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            raise LakeBusy(
                f"{self._path} was locked by other writers for {self._patience:g} s. Repeat the operation; if this "
                "continues, look for a stopped process that holds the file open (lsof)."
            ) from error


def _is_busy(error: BaseException) -> bool:
    busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in busy


def _close(connection: sqlite3.Connection, owner: int) -> None:
    # A forked child must not close the connection of its parent.
    if os.getpid() == owner:
        connection.close()

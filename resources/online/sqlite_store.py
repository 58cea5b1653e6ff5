"""Online store in an SQLite file: the embedded default.

In WAL mode readers wait for no writer. The table has no rowid, so a read is one search in one B-tree. The file must be
on a local disk: SQLite's locks do not hold over NFS. A connection outlives its file: each call compares the file that
it has open with the one at the path, so that nobody reads or writes a file that was moved away.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from resources.files import file_at, locked
from resources.online.store import OnlineRow, OnlineStoreRefused, OnlineStoreUnavailable, require_moments

Answer = TypeVar("Answer")

_FORMAT = 1
"""Format of the file."""
_ROWS_AT_ONCE = 10_000
"""Rows of a transaction. Other writers get their turn in between."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS newest (
    environment TEXT NOT NULL, feature_table TEXT NOT NULL, entity TEXT NOT NULL,
    event_us INTEGER NOT NULL, known_us INTEGER NOT NULL, expires_us INTEGER, content BLOB NOT NULL,
    PRIMARY KEY (environment, feature_table, entity)
) WITHOUT ROWID
"""
_WRITE = """
INSERT INTO newest VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET event_us = excluded.event_us, known_us = excluded.known_us,
    expires_us = excluded.expires_us, content = excluded.content
WHERE (excluded.event_us, excluded.known_us) >= (event_us, known_us)
"""
_READ = """
SELECT event_us, known_us, content FROM newest
WHERE environment = ? AND feature_table = ? AND entity = ? AND (expires_us IS NULL OR expires_us > ?)
"""
_DELETE_EXPIRED = "DELETE FROM newest WHERE environment = ? AND feature_table = ? AND expires_us <= ?"


class SQLiteOnlineStore:
    """Online store in one file, with a connection for each thread."""

    def __init__(self, path: Path, *, environment: str, patience_seconds: float = 30.0) -> None:
        """Use `path`, which the first write creates. A writer waits `patience_seconds` for other writers."""
        self._path = path
        self._environment = environment
        self._patience = patience_seconds
        self._of_thread = threading.local()

    @property
    def place(self) -> str:
        """The file."""
        return str(self._path)

    def write(self, table: str, rows: Iterable[OnlineRow], ttl_us: int | None) -> int:
        """Store each row whose entity has no newer one, and delete expired rows of the table.

        See `OnlineStore.write`.
        """
        rest, written = iter(rows), 0
        while chunk := list(islice(rest, _ROWS_AT_ONCE)):
            for row in chunk:
                require_moments(row)
            written += self._call(lambda chunk=chunk: self._write(table, chunk, ttl_us))
        return written

    def read(self, table: str, entities: Sequence[str]) -> list[OnlineRow | None]:
        """Return the row of each entity. See `OnlineStore.read`."""
        return self._call(lambda: self._read(table, entities))

    def _write(self, table: str, rows: Sequence[OnlineRow], ttl_us: int | None) -> int:
        held = self._held()
        connection = held.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            written = connection.executemany(
                _WRITE,
                (
                    (
                        self._environment,
                        table,
                        row.entity,
                        row.event_us,
                        row.known_us,
                        None if ttl_us is None else row.event_us + ttl_us,
                        row.content,
                    )
                    for row in rows
                ),
            ).rowcount
            connection.execute(_DELETE_EXPIRED, (self._environment, table, _now_us()))
            if file_at(self._path) != held.file:  # moved away since: the rows belong into its successor
                connection.execute("ROLLBACK")
                return self._write(table, rows, ttl_us)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # after a full disk SQLite has rolled it back
                connection.execute("ROLLBACK")
            raise
        return written

    def _read(self, table: str, entities: Sequence[str]) -> list[OnlineRow | None]:
        if not self._path.exists():  # reading creates nothing
            return [None] * len(entities)
        connection, now = self._held().connection, _now_us()
        found: list[OnlineRow | None] = []
        for entity in entities:
            row = connection.execute(_READ, (self._environment, table, entity, now)).fetchone()
            found.append(
                None
                if row is None
                else OnlineRow(entity=entity, event_us=row[0], known_us=row[1], content=row[2])
            )
        return found

    def _call(self, work: Callable[[], Answer]) -> Answer:
        try:
            return work()
        except (sqlite3.OperationalError, OSError) as error:
            raise OnlineStoreUnavailable(
                f"the online store {self._path} does not answer: {error}. Another process may hold it (lsof), the disk "
                "may be full, or the folder cannot be written; then repeat the command"
            ) from error
        except sqlite3.DatabaseError as error:
            raise OnlineStoreRefused(
                f"the online store {self._path} is damaged ({error}): move the file away, and materialize the assets "
                "`…/online` again"
            ) from error

    def _held(self) -> "_Held":
        """Return this thread's connection to the file that is at the path now."""
        held: _Held | None = getattr(self._of_thread, "held", None)
        # SQLite forbids the use of a connection after a fork, also its end.
        if held is not None and held.process == os.getpid() and held.file != file_at(self._path):
            held.connection.close()
            held = None
        if held is None or held.process != os.getpid():
            held = self._open()
            self._of_thread.held = held
        return held

    def _open(self) -> "_Held":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The change to WAL needs an exclusive lock, and SQLite's own timeout does not apply to it.
        with locked(self._path.with_name(f".{self._path.name}.lock")):
            connection = sqlite3.connect(self._path, timeout=self._patience, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, _FORMAT):
                connection.close()
                raise OnlineStoreRefused(
                    f"the online store {self._path} has format {found}, this version reads format {_FORMAT}: move the "
                    "file away, and materialize the assets `…/online` again"
                )
            if found == 0:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version={_FORMAT}")
            return _Held(os.getpid(), connection, file_at(self._path))


@dataclass(frozen=True)
class _Held:
    """Open connection of a thread."""

    process: int
    connection: sqlite3.Connection
    file: tuple[int, int] | None
    """Device and number of its file."""


def _now_us() -> int:
    return time.time_ns() // 1_000

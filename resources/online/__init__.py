"""Online store: the newest feature row of each entity, behind one protocol, in SQLite or Redis.

Here: the protocol, its row and errors, each of which names the store, the reason and the remedy; the choice of the
store by its address; and the embedded default, an SQLite file. `redis_store` uses a server. Not here: the content and
the choice of the rows (`ml_assets.data.tables.online`).

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
from typing import Protocol, TypeVar

from resources.addresses import Address
from resources.files import file_at, locked


class OnlineStoreError(Exception):
    """Base of all errors that an online store raises."""


class OnlineStoreUnavailable(OnlineStoreError):
    """The store does not answer, or is busy. The same call may work later; a repeated write changes nothing."""


class OnlineStoreRefused(OnlineStoreError):
    """The store refuses the call, or its file is damaged. Somebody has to change something first."""


LARGEST_MOMENT = 2**53 - 1
"""Largest moment in microseconds that a store keeps, in the year 2255. Scripts of Redis compute with float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRow:
    """Newest row of an entity. Rows are ordered by `event_us`, then by `known_us`."""

    entity: str
    """Key of the entity within its table."""
    event_us: int
    """Event time of the row, microseconds since 1970 in UTC."""
    known_us: int
    """Time at which this version of the row became known, microseconds since 1970 in UTC."""
    content: bytes


class OnlineStore(Protocol):
    """Newest row of each entity of each table. Safe for any number of threads and processes.

    A row never replaces one that is newer, whatever the order and number of writers. Every method may raise
    `OnlineStoreUnavailable` and `OnlineStoreRefused`.
    """

    @property
    def place(self) -> str:
        """File or address of the store, without credentials."""
        ...

    def write(self, table: str, rows: Iterable[OnlineRow], ttl_us: int | None) -> int:
        """Store each row whose entity has no newer one; return their number. Repeating a write changes nothing.

        A row expires `ttl_us` microseconds after its event; None: never. A killed writer leaves some rows written.
        """
        ...

    def read(self, table: str, entities: Sequence[str]) -> list[OnlineRow | None]:
        """Return the row of each entity; None if it has none, or if it expired."""
        ...


def require_moments(row: OnlineRow) -> None:
    """Raise `OnlineStoreRefused` if a moment of `row` is too far from 1970."""
    if max(abs(row.event_us), abs(row.known_us)) > LARGEST_MOMENT:
        raise OnlineStoreRefused(
            f"a row of {row.entity} is dated {max(abs(row.event_us), abs(row.known_us))} µs from 1970: an online store "
            "keeps moments until 2255. Bound the column in the contract"
        )


def open_online_store(
    address: Address | None, default: Path, *, environment: str, patience_seconds: float | None = None
) -> OnlineStore:
    """Return the store at `address`, or in the SQLite file `default`. Opens it at its first call.

    Raises `OnlineStoreRefused` for an address of another kind.
    """
    patience = {} if patience_seconds is None else {"patience_seconds": patience_seconds}
    whole = "" if address is None else address.reveal()
    if address is not None and whole.startswith(("redis://", "rediss://")):
        from resources.online.redis_store import RedisOnlineStore

        return RedisOnlineStore(address, environment=environment, **patience)
    if whole and not whole.startswith("sqlite:///"):
        raise OnlineStoreRefused(
            f"{address} is no address of an online store: set ML_ASSETS_ONLINE_URL to redis://HOST:PORT/NUMBER or "
            "sqlite:///PATH, or leave it out for a file in the home"
        )
    path = Path(whole.removeprefix("sqlite:///")) if whole else default
    return SQLiteOnlineStore(path, environment=environment, **patience)


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

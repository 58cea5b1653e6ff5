"""Protocol of an online store, the row that it holds for each entity, and the choice of the store by its address.

Each error names the store, the reason and the remedy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from resources.addresses import Address


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
    from resources.online.sqlite_store import SQLiteOnlineStore

    path = Path(whole.removeprefix("sqlite:///")) if whole else default
    return SQLiteOnlineStore(path, environment=environment, **patience)

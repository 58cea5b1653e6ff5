"""Protocol of an online store, and the row that it holds for each entity."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from resources.online.errors import OnlineStoreRefused

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

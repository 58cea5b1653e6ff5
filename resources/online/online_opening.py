"""Choice of the online store by the address in the settings."""

from pathlib import Path

from resources.addresses import Address
from resources.online.errors import OnlineStoreRefused
from resources.online.online_protocol import OnlineStore


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

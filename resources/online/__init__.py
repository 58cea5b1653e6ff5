"""Online store: the newest feature row of each entity, behind one protocol, in SQLite or Redis.

`store` has the protocol and the embedded implementation, `redis_store` uses a server. Not here: the
content and the choice of its rows (`ml_assets.data.tables.online`).
"""

from resources.online.store import (
    LARGEST_MOMENT,
    OnlineRow,
    OnlineStore,
    OnlineStoreError,
    OnlineStoreRefused,
    OnlineStoreUnavailable,
)

__all__ = [
    "LARGEST_MOMENT",
    "OnlineRow",
    "OnlineStore",
    "OnlineStoreError",
    "OnlineStoreRefused",
    "OnlineStoreUnavailable",
]

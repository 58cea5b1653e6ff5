"""Online rows of a small feature table: a dozen aircraft, with the columns that the served models read."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from ml_assets.data.tables.online import OnlineTable
from ml_assets.use.serving.online_lookup import OnlineLookup
from resources.online import OnlineStore

TABLE = OnlineTable(
    table="features/flights",
    entity=("tail",),
    event_at="predicted_at",
    ttl=timedelta(hours=24),
    columns=(
        ("tail", "string"),
        ("day", "date"),
        ("predicted_at", "datetime"),
        ("hour", "int64"),
        ("distance", "float32"),
        ("is_late", "bool"),
        ("delay", "float64"),
        ("carrier", "string"),
        ("gate", "int64"),
    ),
)
NOW = datetime.now(UTC)
EXPIRED = "N3"


def stored_rows() -> list[dict[str, Any]]:
    """Return a row for each aircraft; that of `EXPIRED` is two days old."""
    return [
        {
            "tail": f"N{number}",
            "day": NOW.date(),
            "predicted_at": NOW - timedelta(days=2 if f"N{number}" == EXPIRED else 0, minutes=number),
            "hour": 5 * number,
            "distance": 700.125 + number / 3,
            "is_late": number == 2,
            "delay": float("nan") if number == 2 else 3.5,
            "carrier": "AA",
            "gate": 4,
        }
        for number in range(1, 13)
    ]


def filled(store: OnlineStore) -> OnlineLookup:
    """Write the rows to `store`; return the lookup of a server over it."""
    frame = TABLE.frame_of([])
    rows = pl.DataFrame(stored_rows(), schema=frame.schema)
    store.write(TABLE.table, TABLE.rows_of(rows, NOW), None)
    return OnlineLookup(table=TABLE, store=store, primary_key=("day", "tail"))

"""A small daily table of orders for these tests, and processes that publish it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.guard import WindowValidation, validate_window
from ml_assets.data.tables.publish.publish import PublishResult, publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from resources.lake import VersionedStore
from resources.lake.local import LocalStore
from resources.ledger import Ledger

FIRST = date(2013, 1, 1)
ORDERS = "datasets/orders"

RULES: dict[str, Any] = {
    "primary_key": ["ordered_at", "order"],
    "event_time": "ordered_at",
    "columns": [
        {"name": "ordered_at", "dtype": "datetime"},
        {"name": "order", "dtype": "int64", "ge": 0},
        {"name": "shop", "dtype": "string", "isin": ["north", "south"]},
        {"name": "amount", "dtype": "float64", "ge": 0},
        {"name": "note", "dtype": "string", "nullable": True},
    ],
}
CONTRACT = Contract.model_validate(RULES)


def spec(**changes: Any) -> TableSpec:
    """Return the table of orders with some of its settings changed."""
    settings: dict[str, Any] = {
        "kind": "datasets",
        "name": "orders",
        "contract": CONTRACT,
        "cadence": Cadence("daily", FIRST),
        "volume": VolumeRule(),
        "code_version": "v1",
    }
    return TableSpec(**settings | changes)


def day(key: str, rows: int = 40, factor: float = 1.0) -> pl.DataFrame:
    """Return one day's orders, which keep the contract. `factor` scales the amounts, to change their content."""
    start = datetime.fromisoformat(key).replace(tzinfo=UTC)
    return pl.DataFrame(
        {
            "ordered_at": [start + timedelta(minutes=10 * (row % 144)) for row in range(rows)],
            "order": list(range(rows)),
            "shop": ["north" if row % 3 else "south" for row in range(rows)],
            "amount": [factor * (start.day + row / 4) for row in range(rows)],
            "note": [None if row % 5 else f"note {row}" for row in range(rows)],
        },
        schema_overrides={"ordered_at": pl.Datetime("us", "UTC"), "note": pl.String, "amount": pl.Float64},
    )


def keys(count: int, start: int = 0) -> list[str]:
    """Return `count` consecutive daily keys, from `FIRST` + `start` days on."""
    return [(FIRST + timedelta(start + n)).isoformat() for n in range(count)]


def days(count: int, start: int = 0) -> dict[str, pl.DataFrame]:
    """Return `count` consecutive clean days, from `FIRST` + `start` days on."""
    return {key: day(key) for key in keys(count, start)}


class OrdersTable:
    """A lake and a ledger, by default in one folder, as every process opens them."""

    def __init__(
        self, folder: Path, store: VersionedStore | None = None, ledger: Ledger | None = None
    ) -> None:
        self.folder = folder
        self.store: VersionedStore = LocalStore(folder / "lake") if store is None else store
        self.ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}") if ledger is None else ledger

    def publish(
        self,
        frames: Mapping[str, pl.DataFrame] | Iterable[Incoming],
        run: str = "run00001",
        tables: DeclaredTables = NOTHING_DECLARED,
        **changes: Any,
    ) -> PublishResult:
        """Publish frames, or ready `Incoming`s, as the table of orders."""
        if isinstance(frames, Mapping):
            frames = [Incoming(key=key, data=frame) for key, frame in frames.items()]
        facts = PublishingRun(run_id=run, url=f"http://127.0.0.1:3000/runs/{run}", author="ada")
        return publish(self.store, self.ledger, spec(**changes), frames, facts, tables)

    def ask_guard(self, wanted: Sequence[str], *specs: TableSpec) -> WindowValidation:
        """Ask the guard about the table of orders, or about the last of `specs` where these are all the tables."""
        declared = specs or (spec(),)
        tables = DeclaredTables(DeclaredTable.of(one) for one in declared)
        reader = TableReader.at(self.store)
        return validate_window(reader, self.ledger, tables, declared[-1].table, wanted)


def reject(orders: OrdersTable, key: str) -> None:
    """Publish rows that break the contract for a day, which the audit rejects."""
    broken = day(key).with_columns(pl.lit(-1.0).alias("amount"))
    assert orders.publish({key: broken}, run="run00002").rejected

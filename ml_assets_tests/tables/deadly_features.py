"""A feature function of these tests whose process is killed or held, and the table that it fills."""

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables, InputTable
from ml_assets.data.tables.derive import plan
from ml_assets.data.tables.publish.publish import publish_in_chunks
from ml_assets.data.tables.publish.workers import FeatureTask, features_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import PublishingRun
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import FIRST, ORDERS, OrdersTable
from resources.platform import Platform
from resources.settings import Settings

KILLS = "ML_ASSETS_TESTS_KILLS"
"""Variable with a folder. A call takes a file from it, and then ends its process."""
HELD = "ML_ASSETS_TESTS_HELD"
"""Variable with a folder. A call leaves a file `day@machine` in it, and waits while there is a file `held`."""
TABLE = "features/habits"


def habits(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Amount and number of orders of each shop and day, with the mean amount of the three days up to it."""
    _end_if_asked()
    _wait_if_asked(first)
    if first <= date(2013, 2, 1) <= last:
        raise ZeroDivisionError("no orders in February")
    per_day = (
        inputs[ORDERS]
        .group_by(pl.col("ordered_at").dt.date().alias("partition_date"), "shop")
        .agg(pl.col("amount").sum(), pl.len().cast(pl.Int64).alias("orders"))
        .sort("partition_date", "shop")
    )
    past = [
        per_day.select(pl.col("partition_date") + timedelta(n), "shop", pl.col("amount").alias(f"before_{n}"))
        for n in range(3)
    ]
    for one in past:
        per_day = per_day.join(one, on=["partition_date", "shop"], how="left", maintain_order="left")
    before = [f"before_{n}" for n in range(3)]
    mean = pl.mean_horizontal(before).alias("mean")
    return per_day.filter(pl.col("partition_date").is_between(first, last)).select(
        "partition_date", "shop", "amount", "orders", mean
    )


def _end_if_asked() -> None:
    for token in Path(os.environ.get(KILLS, "/nowhere")).glob("*"):
        with suppress(FileNotFoundError):  # another worker took it
            token.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def _wait_if_asked(day: date) -> None:
    if folder := os.environ.get(HELD):
        (Path(folder) / f"{day}@{socket.gethostname()}").touch()
        while (Path(folder) / "held").exists():
            time.sleep(0.1)


CONTRACT = Contract.model_validate(
    {
        "primary_key": ["partition_date", "shop"],
        "event_time": "partition_date",
        "columns": [
            {"name": "partition_date", "dtype": "date"},
            {"name": "shop", "dtype": "string"},
            {"name": "amount", "dtype": "float64", "ge": 0},
            {"name": "orders", "dtype": "int64"},
            {"name": "mean", "dtype": "float64"},
        ],
    }
)
SPEC = orders_table.spec(kind="features", name="habits", contract=CONTRACT, inputs={ORDERS: 2})
TABLES = DeclaredTables(DeclaredTable.of(one) for one in (orders_table.spec(), SPEC))


def made(home: Path, first: int, count: int, most: int, **pool: Any) -> dict[str, str]:
    """Publish features of `count` days from day `first` on, `most` days in a task; return path → SHA-256 on main.

    `pool`: settings of the pool.
    """
    platform = Platform(Settings.model_validate({"home": home, **pool}))
    orders = OrdersTable(home, platform.lake, platform.ledger)
    orders.publish(orders_table.days(first + count))
    reader = TableReader.at(platform.lake)
    inputs = [InputTable(table=ORDERS, cadence=Cadence("daily", FIRST), lookback=2)]
    wanted = orders_table.keys(count, first)
    (keys,) = plan(reader, platform.ledger, TABLES, inputs, wanted, SPEC.cadence).ranges
    task = FeatureTask(
        platform=platform,
        reader=reader,
        spec=SPEC,
        inputs=tuple(inputs),
        function=f"{__name__}.habits",
        partition_date="partition_date",
    )
    pieces = [keys[at : at + most] for at in range(0, count, most)]
    run = PublishingRun(run_id="run00002")
    results = publish_in_chunks(
        platform.lake, platform.ledger, SPEC, features_of(task, pieces), run, TABLES, chunk_bytes=1
    )
    for result in results:
        assert not result.rejected
        assert not result.failed
    now = TableReader.at(platform.lake)
    return {path: sha for key in now.keys(TABLE) for path, sha in now.object_hashes(TABLE, key).items()}

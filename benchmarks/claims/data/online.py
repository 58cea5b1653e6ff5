"""Read of the newest feature row of one entity of 100,000, as requests do it: key, read, 40 columns as values.

SQLite is a file in a temporary folder. Redis is started on loopback as the tests do, so this runs only by name
(`make bench ARGS=online`). The p99 is the median over ten rounds of 2,000 reads of random entities.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._report import Result, emit, parse_args
from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import variables
from ml_assets.data.tables.online import OnlineTable
from resources.addresses import Address
from resources.online import OnlineStore
from resources.online.store import open_online_store

ENTITIES, NUMBERS = 100_000, 36
ROUNDS, READS = 10, 2_000
BARS = {"SQLite": 0.2, "Redis": 1.0}
"""Largest p99 in milliseconds."""
DECLARED = OnlineTable(
    table="features/customers",
    entity=("customer",),
    event_at="predicted_at",
    ttl=timedelta(days=30),
    columns=(
        ("customer", "int64"),
        ("predicted_at", "datetime"),
        ("country", "string"),
        ("is_new", "bool"),
        *((f"number_{n}", "float32") for n in range(NUMBERS)),
    ),
)


def made_up(entities: int) -> pl.DataFrame:
    """Return a row of 40 columns for each customer."""
    draw = np.random.default_rng(3)
    return pl.DataFrame(
        {
            "customer": np.arange(entities),
            "predicted_at": [datetime.now(UTC) - timedelta(hours=1)] * entities,
            "country": draw.choice(["FI", "NO", "SE"], entities),
            "is_new": draw.random(entities) < 0.5,
            **{f"number_{n}": draw.random(entities, dtype=np.float32) for n in range(NUMBERS)},
        }
    )


@contextmanager
def redis(folder: Path) -> Iterator[Address]:
    """Yield the address of a Redis that ends with the benchmark."""
    group = Servers(folder / "servers", ("redis",))
    try:
        yield Address(variables(group.up())["REDIS_URL"])
    finally:
        group.down()


def latencies(store: OnlineStore, entities: int, reads: int) -> tuple[float, float]:
    """Return the p99 and the median of reads in milliseconds, each the median over all rounds."""
    draw, p99s, medians = random.Random(1), list[float](), list[float]()
    for _ in range(ROUNDS):
        taken: list[float] = []
        for customer in draw.choices(range(entities), k=reads):
            began = time.perf_counter_ns()
            (row,) = DECLARED.newest(store, [DECLARED.entity_of({"customer": customer})])
            values = None if row is None else DECLARED.values_in(row)
            taken.append((time.perf_counter_ns() - began) / 1e6)
            if values is None or values["customer"] != customer:
                raise SystemExit(f"customer {customer} was not read back")
        p99s.append(float(np.percentile(taken, 99)))
        medians.append(statistics.median(taken))
    return statistics.median(p99s), statistics.median(medians)


def measure(*, quick: bool) -> list[Result]:
    """Return the claims about both stores."""
    entities, reads = (ENTITIES // 20, READS // 10) if quick else (ENTITIES, READS)
    rows = DECLARED.rows_of(made_up(entities), datetime.now(UTC))
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="online-") as made, redis(Path(made)) as address:
        for name, where in (("SQLite", None), ("Redis", address)):
            store = open_online_store(where, Path(made) / "online.db", environment="benchmark")
            began = time.perf_counter()
            store.write(DECLARED.table, rows, DECLARED.ttl_us)
            filled = time.perf_counter() - began
            p99, median = latencies(store, entities, reads)
            found.append(
                Result(
                    name=f"online read, {name}: p99 of one row of 40 columns; {entities:,} rows written in "
                    f"{filled:.1f} s",
                    value=p99,
                    unit="ms",
                    peers={"median": median},
                    bar=f"≤ {BARS[name]:g} ms",
                    ok=p99 <= BARS[name],
                )
            )
    return found


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    raise SystemExit(emit(measure(quick=arguments.quick), json=arguments.json))

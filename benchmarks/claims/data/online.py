"""Read of the newest feature row of one entity of 100,000, as requests do it: key, read, 40 columns as values.

SQLite is a file in a temporary folder. Redis is started on loopback as the tests do, so this runs only by name
(`make bench ARGS=online`). The p99 is the median over ten rounds of 2,000 reads of random entities. The peer reads the
same values from the same kind of store by hand, each read beside ours: sqlite3 by primary key, or redis-py's `get`,
then `orjson.loads` and a dict of 40 columns. SQLite reads in this thread, so its p99 is of CPU time: beside other work
one read in a hundred loses the processor for longer than it takes, and that would be all its wall time shows.
"""

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from benchmarks._report import Result, emit, parse_args, ratio_of
from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import variables
from ml_assets.data.tables.online import OnlineTable
from resources.addresses import Address
from resources.online import OnlineRow, open_online_store

ENTITIES, NUMBERS = 100_000, 36
ROUNDS, READS = 10, 2_000
BARS = {"SQLite": 4.0, "Redis": 3.0}
"""Largest p99, as a multiple of the peer's. Ours also looks whether the file at the path is still the same, compares
the hash of the columns and two moments, and turns times back into values: 1.4 to 2.1 times, Redis 0.7 to 2.4."""
Read = Callable[[int], dict[str, object]]
"""Customer → its values."""
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


def by_sqlite(file: Path, rows: Sequence[OnlineRow]) -> Read:
    """Store `rows` by hand in SQLite; return the reader."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE plain (customer INTEGER PRIMARY KEY, content BLOB) WITHOUT ROWID")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO plain VALUES (?, ?)", enumerate(row.content for row in rows))
    connection.execute("COMMIT")
    query = "SELECT content FROM plain WHERE customer = ?"
    return lambda customer: _values(connection.execute(query, (customer,)).fetchone()[0])


def by_redis(address: Address, rows: Sequence[OnlineRow]) -> Read:
    """Store `rows` by hand in Redis; return the reader."""
    from redis import Redis

    client: Any = Redis.from_url(address.reveal())
    with client.pipeline(transaction=False) as pipeline:
        for customer, row in enumerate(rows):
            pipeline.set(f"plain:{customer}", row.content)
        pipeline.execute()
    return lambda customer: _values(client.get(f"plain:{customer}"))


def _values(content: bytes) -> dict[str, object]:
    return dict(zip(DECLARED.types, orjson.loads(content)[1], strict=True))


def latencies(
    ways: dict[str, Read], entities: int, reads: int, clock: Callable[[], int]
) -> dict[str, list[tuple[float, float]]]:
    """Return the p99 and the median of the reads of each round in milliseconds, by way; the ways read in turn.

    `clock` returns nanoseconds.
    """
    draw = random.Random(1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for customer in draw.choices(range(entities), k=reads):
            for name, read in ways.items():
                began = clock()
                values = read(customer)
                taken[name].append((clock() - began) / 1e6)
                if values["customer"] != customer:
                    raise SystemExit(f"{name}: customer {customer} was not read back")
        for name, each in taken.items():
            found[name].append((float(np.percentile(each, 99)), statistics.median(each)))
    return found


def measure(*, quick: bool) -> list[Result]:
    """Return the claims about both stores."""
    entities, reads = (ENTITIES // 20, READS // 10) if quick else (ENTITIES, READS)
    rows = DECLARED.rows_of(made_up(entities), datetime.now(UTC))
    with tempfile.TemporaryDirectory(prefix="online-") as made, redis(Path(made)) as address:
        return [
            _claim("SQLite", None, by_sqlite(Path(made) / "plain.db", rows), Path(made), rows, reads),
            _claim("Redis", address, by_redis(address, rows), Path(made), rows, reads),
        ]


def _claim(
    name: str, address: Address | None, plain: Read, folder: Path, rows: Sequence[OnlineRow], reads: int
) -> Result:
    """Return the claim about the store at `address`, or about SQLite in `folder`."""
    store = open_online_store(address, folder / "online.db", environment="benchmark")
    began = time.perf_counter()
    store.write(DECLARED.table, rows, DECLARED.ttl_us)
    filled = time.perf_counter() - began

    def ours(customer: int) -> dict[str, object]:
        (row,) = DECLARED.newest(store, [DECLARED.entity_of({"customer": customer})])
        return {"customer": None} if row is None else DECLARED.values_in(row)

    clock = time.thread_time_ns if address is None else time.perf_counter_ns
    found = latencies({"ours": ours, "plain": plain}, len(rows), reads, clock)
    p99s, medians = ({way: [one[at] for one in rounds] for way, rounds in found.items()} for at in (0, 1))
    times = ratio_of(p99s["ours"], p99s["plain"])
    return Result(
        name=f"online read, {name}: p99 of one row of 40 columns{'' if address else ', CPU time'} ({times.spread}); "
        f"{len(rows):,} rows written in {filled:.1f} s",
        value=statistics.median(p99s["ours"]),
        unit="ms",
        peers={
            "by hand": statistics.median(p99s["plain"]),
            "median": statistics.median(medians["ours"]),
            "median by hand": statistics.median(medians["plain"]),
        },
        ratio=times.median,
        bar=f"≤ {BARS[name]:g} × by hand",
        ok=times.median <= BARS[name],
    )


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    raise SystemExit(emit(measure(quick=arguments.quick), json=arguments.json))

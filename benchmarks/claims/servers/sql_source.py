"""Read of one partition of five million rows from PostgreSQL, by the source of kind `sql` and by `pandas.read_sql`, and
a recheck of a table of a thousand partitions.

Both read the same rows of the same server on loopback, which this script starts and ends, so it runs only by name
(`make bench ARGS=sql_source`). Each read has a process of its own, in turns. Memory is the growth of the process's
resident memory at its highest during the read, after a small read that loads the libraries; the frame that the read
returns is subtracted, by the bytes of its columns. So it is what the reader needs beside its result. The chunk is the
partition: the source hands it to the validation as a whole.

The recheck is what a tick of a sensor asks PostgreSQL: the newest day, the versions of the two newest partitions, and
newer changes, by a table that nobody changed, with an index on the time and on the date of the change. Its peer asks by
hand over an open connection, each time beside ours: one query for the newest row, the newest change, and number and
checksum of the rows of two days.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args, ratio_of
from deployment.testbed.servers import Servers

ROWS, SMALL = 5_000_000, 1_000
ROUNDS = 3
DAY, SMALL_DAY = date(2024, 3, 8), date(2024, 3, 7)
LEAST_SPEED, MOST_MEMORY = 3.0, 2.0
PARTITIONS, ROWS_A_DAY, TICKS = 1_000, 2_880, 20
MOST_TIMES_BY_HAND = 8.0
"""Most time of a recheck, which also finds changes of any age, and waits in a thread of its own."""
COLUMNS = {
    "sale": "int64",
    "sold_at": "datetime",
    "product": "string",
    "units": "int32",
    "price": "float64",
    "gift": "bool",
}
FILL = """
INSERT INTO sales SELECT n, timestamptz '{day} 00:00Z' + n * interval '1 ms', 'product ' || n % 1000, n % 100,
n / 7.0::float8, n % 2 = 0 FROM generate_series(1, {rows}) AS n
"""


THOUSAND_DAYS = """
CREATE TABLE thousand AS SELECT n AS sale, timestamptz '2021-06-12Z' + n * interval '86400 s' / {a_day} AS sold_at,
'product ' || n % 1000 AS product, (n % 100)::int4 AS units, n / 7.0::float8 AS price, n % 2 = 0 AS gift,
timestamptz '2021-06-13Z' + n * interval '86400 s' / {a_day} AS changed_at
FROM generate_series(0::int8, {a_day} * {partitions} - 1) AS n;
CREATE INDEX ON thousand (sold_at); CREATE INDEX ON thousand (changed_at); ANALYZE thousand
"""


def _reader(url: str, table: str, columns: dict[str, str], first: date, watermark: str | None = None) -> Any:
    from ml_assets.data.sources.kinds import open_source
    from ml_assets.data.sources.protocol import SourceTable
    from ml_assets.data.sources.sql_source import SqlSource
    from ml_assets.data.validation.contract import Contract
    from resources.platform import Platform
    from resources.settings import Settings

    os.environ["BENCHMARK_URL"] = url
    declared = [{"name": name, "dtype": dtype} for name, dtype in columns.items()]
    contract = Contract.model_validate({"columns": declared, "event_time": "sold_at"})
    section = SqlSource(kind="sql", url_env="BENCHMARK_URL", table=table, watermark_column=watermark)
    return open_source(
        section, SourceTable(name="datasets/sales", contract=contract, start=first), Platform(Settings())
    )


def by_source(url: str, day: date) -> Any:
    """Read a day as a run does."""
    from ml_assets.data.sources.protocol import Span

    return _reader(url, "sales", COLUMNS, day).read(Span(day, day + timedelta(days=1))).frame


def ask_by_hand(cursor: Any, first: date) -> None:
    """Ask for the newest row, the newest change, and number and checksum of the rows since `first`, as a user's script
    does.
    """
    cursor.execute(
        "SELECT (SELECT max(sold_at) FROM thousand), (SELECT max(changed_at) FROM thousand), "
        "count(*), sum(hashtextextended(thousand::text, 0)) "
        f"FROM thousand WHERE sold_at >= '{first} 00:00Z'"
    )
    if None in cursor.fetchall()[0]:
        raise SystemExit("the peer of the recheck found no rows")


def recheck(url: str) -> tuple[list[float], list[float], int]:
    """Return the milliseconds of ticks of a table that nobody changed, those by hand, and the queries of a tick."""
    from adbc_driver_postgresql import dbapi

    from ml_assets.data.sources.protocol import ReadPartition, Span

    first = date(2021, 6, 12)
    reader = _reader(url, "thousand", {**COLUMNS, "changed_at": "datetime"}, first, "changed_at")
    days = [first + timedelta(days=n) for n in range(PARTITIONS)]
    spans = [Span(day, day + timedelta(days=1)) for day in days]
    read = {span: reader.read(span) for span in spans}
    known = {span: ReadPartition(one.watermark, one.version) for span, one in read.items()}
    taken: list[float] = []
    plain: list[float] = []
    queries = 0
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for _ in range(TICKS):
            began = time.perf_counter()
            ask_by_hand(cursor, days[-2])
            plain.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            look = reader.look(known, spans[-2:])
            taken.append(1000 * (time.perf_counter() - began))
            queries = max(queries, look.cost["queries"])
            if look.changed or look.latest != days[-1]:
                raise SystemExit(f"the recheck found changes that nobody made: {look}")
    return taken, plain, queries


def by_pandas(url: str, day: date) -> Any:
    """Read a day by `pandas.read_sql` through SQLAlchemy and psycopg2."""
    import pandas as pd
    import sqlalchemy as sa

    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg2://"))
    query = sa.text(f"SELECT {', '.join(COLUMNS)} FROM sales WHERE sold_at >= :first AND sold_at < :end")
    bounds = {"first": f"{day} 00:00Z", "end": f"{date.fromordinal(day.toordinal() + 1)} 00:00Z"}
    with engine.connect() as connection:
        return pd.read_sql(query, connection, params=bounds)


WAYS: dict[str, Callable[[str, date], Any]] = {"sql": by_source, "pandas.read_sql": by_pandas}


def _memory(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def _size(frame: Any) -> int:
    return int(
        frame.estimated_size() if hasattr(frame, "estimated_size") else frame.memory_usage(deep=True).sum()
    )


def _read(way: str, url: str, answer: Any) -> None:
    """Read the day in this process; send rows, seconds, growth of memory and size of the frame, in bytes."""
    WAYS[way](url, SMALL_DAY)
    Path("/proc/self/clear_refs").write_text("5")  # resets the highest resident memory
    before = _memory("VmRSS")
    began = time.perf_counter()
    frame = WAYS[way](url, DAY)
    seconds = time.perf_counter() - began
    answer.send((len(frame), seconds, _memory("VmHWM") - before, _size(frame)))


def read_once(way: str, url: str) -> tuple[int, float, int, int]:
    """Return what `_read` sends from a process of its own."""
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    process = processes.Process(target=_read, args=(way, url, there))
    process.start()
    there.close()
    found = here.recv()
    process.join()
    return found


def measure(*, quick: bool) -> list[Result]:
    """Return the claims about seconds and memory."""
    from adbc_driver_postgresql import dbapi

    rows = ROWS // 50 if quick else ROWS
    taken: dict[str, list[tuple[int, float, int, int]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="sql-source-") as made:
        group = Servers(Path(made) / "servers", ("postgresql",))
        try:
            url = group.up().database_url("ledger").replace("postgresql+psycopg2", "postgresql")
            with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.executescript(
                    "CREATE TABLE sales (sale int8, sold_at timestamptz, product text, units int4, price float8, "
                    "gift bool)"
                )
                cursor.executescript(FILL.format(day=SMALL_DAY, rows=SMALL))
                cursor.executescript(FILL.format(day=DAY, rows=rows))
                cursor.executescript("ANALYZE sales")
                a_day = ROWS_A_DAY // 50 if quick else ROWS_A_DAY
                cursor.executescript(THOUSAND_DAYS.format(a_day=a_day, partitions=PARTITIONS))
            ticks, plain, queries = recheck(url)
            for _ in range(1 if quick else ROUNDS):
                for way in WAYS:
                    found = read_once(way, url)
                    if found[0] != rows:
                        raise SystemExit(f"{way} read {found[0]:,} of {rows:,} rows")
                    taken[way].append(found)
        finally:
            group.down()
    seconds = {way: statistics.median(one[1] for one in found) for way, found in taken.items()}
    beside = {
        way: statistics.median((one[2] - one[3]) / 2**20 for one in found) for way, found in taken.items()
    }
    sizes = {way: found[0][3] / 2**20 for way, found in taken.items()}
    speed = seconds["pandas.read_sql"] / seconds["sql"]
    times = ratio_of(ticks, plain)
    whole = (beside["sql"] + sizes["sql"]) / sizes["sql"]
    return [
        Result(
            name=f"{rows:,} rows of 6 columns into one partition",
            value=seconds["sql"],
            unit="s",
            peers={"pandas.read_sql": seconds["pandas.read_sql"]},
            ratio=speed,
            bar=f"≥ {LEAST_SPEED:g} × as fast as pandas.read_sql",
            ok=speed >= LEAST_SPEED,
        ),
        Result(
            name=f"memory beside the returned frame of {sizes['sql']:.0f} MiB (pandas: {sizes['pandas.read_sql']:.0f})",
            value=beside["sql"],
            unit="MiB",
            peers={"pandas.read_sql": beside["pandas.read_sql"]},
            ratio=whole,
            bar=f"peak, the frame included, ≤ {MOST_MEMORY:g} × the frame",
            ok=whole <= MOST_MEMORY,
        ),
        Result(
            name=f"recheck of {PARTITIONS:,} partitions of {a_day:,} rows ({times.spread})",
            value=statistics.median(ticks),
            unit="ms",
            peers={"by hand": statistics.median(plain)},
            ratio=times.median,
            bar=f"≤ 1 query and ≤ {MOST_TIMES_BY_HAND:g} × by hand",
            ok=queries <= 1 and (quick or times.median <= MOST_TIMES_BY_HAND),
        ),
    ]


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    raise SystemExit(emit(measure(quick=arguments.quick), json=arguments.json))

"""A year of flights through write–audit–publish, read back, and validated by the guard.

* 365 days published: encoded, profiled, validated, committed, merged; beside plain files written by polars
* the guard over 337 days of a table made from them, each from 29 days
* all rows of the year scanned at a commit; beside polars on the plain files
"""

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import polars as pl

from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.data.tables import parquet
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.column_types import schema_of
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from ml_assets.defs.flights import source
from resources.lake.local import LocalStore
from resources.ledger import Ledger

FIRST = date(2013, 1, 1)
CADENCE = Cadence("daily", FIRST)
LOOKBACK = 29
"""Days of flights behind one day of the derived table: the day itself and four weeks."""

Frames = Mapping[str, pl.DataFrame]


class Home:
    """A lake and a ledger in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(folder / "lake")
        self.ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")


def flights(days: int) -> dict[str, pl.DataFrame]:
    """Return key → flights of that day."""
    dates = [FIRST + timedelta(n) for n in range(days)]
    return {str(day): source.read_flights(day) for day in dates}


def table(kind: str, name: str, frames: Frames) -> TableSpec:
    """Return a table of flights whose types, nulls, known carriers, key, event times and volume are validated."""
    everything = pl.concat(list(frames.values()))
    carriers = sorted(everything["carrier"].unique())
    columns = [
        {"name": column, "dtype": dtype, "nullable": everything[column].null_count() > 0}
        | ({"isin": carriers} if column == "carrier" else {})
        for column, dtype in schema_of(everything)
    ]
    contract = Contract.model_validate(
        {
            "columns": columns,
            "primary_key": ["scheduled_departure_at", "carrier", "flight", "origin"],
            "event_time": "scheduled_departure_at",
            "event_time_zone": "America/New_York",
        }
    )
    return TableSpec(kind=kind, name=name, contract=contract, cadence=CADENCE, volume=VolumeRule())


def publish_all(home: Home, spec: TableSpec, incoming: list[Incoming]) -> float:
    """Return the seconds to publish into this home."""
    started = time.perf_counter()
    result = publish(
        home.store, home.ledger, spec, incoming, PublishingRun(run_id="benchmark"), NOTHING_DECLARED
    )
    taken = time.perf_counter() - started
    if result.rejected or result.failed:
        raise RuntimeError(f"not all days were published: {[*result.rejected, *result.failed]}")
    return taken


def write_plainly(folder: Path, frames: Frames) -> float:
    """Return the seconds that polars needs to sort the same days and write them as files, not validated."""
    started = time.perf_counter()
    for key, frame in frames.items():
        frame.sort("scheduled_departure_at", "carrier", "flight", "origin").write_parquet(
            folder / f"{key}.parquet", row_group_size=parquet.ROW_GROUP_ROWS
        )
    return time.perf_counter() - started


def measure(days: int, rounds: int, folder: Path) -> list[Result]:
    """Measure the three claims."""
    frames = flights(days)
    spec = table("datasets", "flights", frames)
    incoming = [Incoming(key=key, data=frame) for key, frame in frames.items()]
    check_partitions(frames, spec.contract)  # importing pandera is measured by import_time.py, not here
    plain = folder / "plain"
    plain.mkdir()
    published, written = [], []
    for attempt in range(rounds):
        published.append(publish_all(Home(folder / f"home{attempt}"), spec, incoming))
        written.append(write_plainly(plain, frames))

    home = Home(folder / "home0")
    reader = TableReader.at(home.store)
    derived_keys = list(frames)[LOOKBACK - 1 :]
    derived = [
        Incoming(
            key=key,
            data=frames[key],
            inputs={spec.table: reader.input_digests(spec.table, CADENCE.window(key, LOOKBACK))},
        )
        for key in derived_keys
    ]
    features = replace(table("features", "departures", frames), inputs={spec.table: LOOKBACK - 1})
    declared = DeclaredTables([DeclaredTable.of(spec), DeclaredTable.of(features)])
    publish_all(home, features, derived)

    def guard() -> None:
        again = Home(home.folder)
        validation = validate_window(
            TableReader.at(again.store), again.ledger, declared, features.table, derived_keys
        )
        if not validation.ok or validation.stale:
            raise RuntimeError(validation.explain())

    timings = interleave(
        {
            "guard": guard,
            "scan": lambda: TableReader.at(home.store).scan(spec.table, list(frames)).collect(),
            "plain": lambda: pl.scan_parquet([plain / f"{key}.parquet" for key in frames]).collect(),
        },
        rounds + 3,
    )
    best_published, best_written = min(published), min(written)
    scanned, plainly = timings["scan"].best, timings["plain"].best
    return [
        Result(
            name=f"publish {days} days of flights",
            value=best_published,
            unit="s",
            peers={"polars, plain files": best_written},
            ratio=best_published / best_written,
            bar="≤ 10 × polars, plain files",
            ok=best_published <= 10 * best_written,
        ),
        Result(
            name=f"guard over {len(derived_keys)} days of {LOOKBACK} inputs",
            value=timings["guard"].median,
            unit="s",
            peers={"polars, all rows of the plain files": timings["plain"].median},
            ratio=timings["guard"].median / timings["plain"].median,
            bar="≤ 3 × polars",
            ok=timings["guard"].median <= 3 * timings["plain"].median,
        ),
        Result(
            name=f"scan {days} days at a commit",
            value=scanned,
            unit="s",
            peers={"polars, plain files": plainly},
            ratio=scanned / plainly,
            bar="≤ 2 × polars on plain files",
            ok=scanned <= 2 * plainly,
        ),
    ]


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    scratch = Path(tempfile.mkdtemp())
    try:
        results = measure(90 if arguments.quick else 365, 1 if arguments.quick else 3, scratch)
    finally:
        shutil.rmtree(scratch)
    raise SystemExit(emit(results, json=arguments.json))

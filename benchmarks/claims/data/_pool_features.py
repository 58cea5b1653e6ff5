"""Clicks of some days, and a feature function over them, for the benchmark of pools; and one build of the features."""

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables, InputTable
from ml_assets.data.tables.derive import plan
from ml_assets.data.tables.publish.publish import publish_in_chunks
from ml_assets.data.tables.publish.workers import FeatureTask, features_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from resources.platform import Platform
from resources.settings import Settings

FIRST = date(2024, 1, 1)
CLICKS, FEATURES = "datasets/clicks", "features/users"
LOOKBACK = 7
NUMBERS = [f"number_{n}" for n in range(8)]
USERS = 20_000
PIECE = 4
"""Days of a task."""


def users(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return each user of a day, with sums of the day and of the week up to it."""
    day = pl.col("at").dt.date().alias("partition_date")
    daily = (
        inputs[CLICKS]
        .group_by(day, "user")
        .agg(pl.len().cast(pl.Int64).alias("clicks"), *(pl.col(name).sum() for name in NUMBERS))
        .sort("partition_date", "user")
    )
    # Integers: the last bits of a sum of floats follow the order in which threads come.
    before = [pl.col(name).rolling_sum_by("partition_date", "7d").over("user") for name in NUMBERS]
    return daily.with_columns(one.name.suffix("_week") for one in before).filter(
        pl.col("partition_date").is_between(first, last)
    )


def _spec(kind: str, name: str, columns: list[dict[str, Any]], key: list[str], **more: Any) -> TableSpec:
    contract = Contract.model_validate({"primary_key": key, "event_time": key[0], "columns": columns})
    cadence = Cadence("daily", FIRST)
    volume = VolumeRule()
    return TableSpec(kind=kind, name=name, contract=contract, cadence=cadence, volume=volume, **more)


_INTEGERS = [{"name": name, "dtype": "int64"} for name in NUMBERS]
CLICKS_SPEC = _spec(
    "datasets",
    "clicks",
    [
        {"name": "at", "dtype": "datetime"},
        {"name": "click", "dtype": "int64"},
        {"name": "user", "dtype": "int64"},
        *_INTEGERS,
    ],
    ["at", "click"],
)
FEATURES_SPEC = _spec(
    "features",
    "users",
    [
        {"name": "partition_date", "dtype": "date"},
        {"name": "user", "dtype": "int64"},
        {"name": "clicks", "dtype": "int64"},
        *_INTEGERS,
        *({"name": f"{name}_week", "dtype": "int64"} for name in NUMBERS),
    ],
    ["partition_date", "user"],
    inputs={CLICKS: LOOKBACK},
)
TABLES = DeclaredTables(DeclaredTable.of(one) for one in (CLICKS_SPEC, FEATURES_SPEC))


def publish_clicks(home: Path, days: int, rows: int) -> None:
    """Publish `rows` clicks for each of `days` in the embedded lake of `home`."""
    platform = Platform(Settings.model_validate({"home": home}))

    def clicks(number: int) -> Incoming:
        draw = np.random.default_rng(number)
        start = datetime.combine(FIRST + timedelta(number), datetime.min.time(), UTC)
        seconds = np.sort(draw.integers(0, 86_400, rows))
        frame = pl.DataFrame(
            {
                "at": pl.Series(seconds * 1_000_000).cast(pl.Duration("us")) + start,
                "click": np.arange(rows),
                "user": draw.integers(0, USERS, rows),
                **{name: draw.integers(0, 10_000, rows) for name in NUMBERS},
            }
        )
        return Incoming(key=start.date().isoformat(), data=frame)

    incoming = map(clicks, range(days))
    run = PublishingRun(run_id="clicks01")
    for result in publish_in_chunks(
        platform.lake, platform.ledger, CLICKS_SPEC, incoming, run, TABLES, chunk_bytes=2**28
    ):
        assert not result.rejected
        assert not result.failed


def build(home: Path, days: int, **pool: Any) -> dict[str, Any]:
    """Publish the features of all days by a pool; return wall and CPU seconds of this process and those below it, and
    a digest of all objects."""
    platform = Platform(Settings.model_validate({"home": home, **pool}))
    reader = TableReader.at(platform.lake)
    inputs = [InputTable(table=CLICKS, cadence=CLICKS_SPEC.cadence, lookback=LOOKBACK)]
    wanted = reader.keys(CLICKS)[:days]
    (keys,) = plan(reader, platform.ledger, TABLES, inputs, wanted, FEATURES_SPEC.cadence).ranges
    task = FeatureTask(
        platform=platform,
        reader=reader,
        spec=FEATURES_SPEC,
        inputs=tuple(inputs),
        function=f"{__name__}.users",
        partition_date="partition_date",
    )
    pieces = [keys[at : at + PIECE] for at in range(0, len(keys), PIECE)]
    run = PublishingRun(run_id="users001")
    began, seconds = time.perf_counter(), _TreeSeconds()
    results = publish_in_chunks(
        platform.lake, platform.ledger, FEATURES_SPEC, features_of(task, pieces), run, TABLES, 2**27
    )
    for result in results:
        assert not result.rejected
        assert not result.failed
    wall = time.perf_counter() - began
    now, digest = TableReader.at(platform.lake), hashlib.sha256()
    for key in now.keys(FEATURES):
        for path, sha in sorted(now.object_hashes(FEATURES, key).items()):
            digest.update(f"{path} {sha}\n".encode())
    return {"wall": wall, "cpu": seconds.end(), "digest": digest.hexdigest()}


class _TreeSeconds:
    """CPU seconds of this process and of all below it, also of those that nobody waits for. It looks at
    them five times a second, so the last moments of a process are missing."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._over = threading.Event()
        self._look()
        self._before = sum(self._seconds.values())
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Stop looking; return the seconds."""
        self._over.set()
        self._thread.join()
        self._look()
        return sum(self._seconds.values()) - self._before

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self._look()

    def _look(self) -> None:
        parents: dict[int, int] = {}
        spent: dict[int, float] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                process = int(folder.name)
                parents[process] = int(fields[1])
                spent[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        ours = {os.getpid()}
        while more := {one for one, parent in parents.items() if parent in ours} - ours:
            ours |= more
        # A process that lost its parent keeps counting once it was seen.
        self._seconds |= {one: spent[one] for one in (ours | self._seconds.keys()) & spent.keys()}

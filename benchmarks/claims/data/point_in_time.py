"""`join_as_of`: 300,000 rows and 300,000 facts of 3,000 keys over a year, a tolerance of 30 days, beside Feast.

The peers run in their own environment, which the first run makes (it installs Feast with duckdb). Feast knows no
knowledge time at the join: its creation time only decides between facts of one event. So the same join is timed for
both, and must give the rows of Feast on duckdb. The join with both times must give the rows of a query of duckdb that
compares all pairs of a key.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._peers import SCRIPTS, peers_python
from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.data.features.point_in_time import join_as_of

PEERS = ("feast[duckdb]==0.67.0", "polars==2.1.0")
ROWS, KEYS = 300_000, 3_000
TTL = timedelta(days=30)
TIMES_DASK, TIMES_DUCKDB = 100, 10
MOMENT = pl.Datetime("us", "UTC")


def made_up(size: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return rows and facts. A tenth of the facts correct an earlier one, up to 40 days later."""
    draw = np.random.default_rng(7)
    begin = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 10**6
    year, day = 365 * 86_400 * 10**6, 86_400 * 10**6
    rows = pl.DataFrame(
        {
            "row": np.arange(size),
            "key": draw.integers(0, KEYS, size),
            "at": begin + draw.choice(year // 10**6, size, replace=False) * 10**6,
        }
    )
    first = size - size // 10
    key, happened = draw.integers(0, KEYS, first), begin + draw.choice(year, first, replace=False)
    corrected = draw.choice(first, size - first, replace=False)
    known = happened + draw.integers(0, day, first)
    facts = pl.DataFrame(
        {
            "key": np.concatenate([key, key[corrected]]),
            "happened_at": np.concatenate([happened, happened[corrected]]),
            "known_at": np.concatenate(
                [known, known[corrected] + draw.integers(1, 40 * day, len(corrected))]
            ),
            "value": draw.random(size),
        }
    )
    moments = pl.col("^.*at$").cast(MOMENT)
    return rows.with_columns(moments), facts.with_columns(moments).sample(fraction=1.0, shuffle=True, seed=7)


def join(rows: pl.DataFrame, facts: pl.DataFrame, known_at: str) -> pl.DataFrame:
    """Return `rows` with their facts. `known_at`: the column that says when a fact counts."""
    return join_as_of(
        rows,
        facts,
        by=["key"],
        at="at",
        event_at="happened_at",
        known_at=known_at,
        tolerance=TTL,
        tiebreak=["known_at"],
    )


def peer(name: str, folder: Path) -> tuple[float, pl.DataFrame]:
    """Return the seconds of a peer's join and its rows."""
    script = SCRIPTS / "bare_feature_peers.py"
    environment = os.environ | {"FEAST_USAGE": "False", "PYTHONPATH": ""}  # no telemetry in a measurement
    done = subprocess.run(
        [peers_python("feature-peers", PEERS), script, name, folder],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])["seconds"], pl.read_parquet(folder / f"{name}.parquet")


def same(ours: pl.DataFrame, theirs: pl.DataFrame) -> bool:
    """Return True if both have the same value for each row."""
    return ours["value"].to_list() == theirs["value"].to_list()


def measure(*, quick: bool) -> list[Result]:
    """Return the claims about the join."""
    rows, facts = made_up(ROWS // 10 if quick else ROWS)
    with tempfile.TemporaryDirectory(prefix="point-in-time-") as made:
        folder = Path(made)
        rows.write_parquet(folder / "rows.parquet")
        facts.write_parquet(folder / "facts.parquet")
        seconds: dict[str, float] = {}
        found: dict[str, pl.DataFrame] = {}
        for name in ("feast-dask", "feast-duckdb", "duckdb"):
            seconds[name], found[name] = peer(name, folder)
    ways: dict[str, Callable[[], object]] = {
        "one": lambda: join(rows, facts, "happened_at"),
        "both": lambda: join(rows, facts, "known_at"),
    }
    ours = interleave(ways, 5)
    one, both = ours["one"].median, ours["both"].median
    alike = same(join(rows, facts, "happened_at"), found["feast-duckdb"])
    by_dask, by_duckdb = seconds["feast-dask"] / one, seconds["feast-duckdb"] / one
    exact = same(join(rows, facts, "known_at"), found["duckdb"])
    dropped = rows.height - found["feast-dask"].height
    return [
        Result(
            name=f"point-in-time join, {rows.height:,} × {facts.height:,}, TTL 30 days: Feast's dask "
            f"({dropped:,} rows dropped) takes {by_dask:.0f} ×, its duckdb {by_duckdb:.0f} ×",
            value=one,
            unit="s",
            peers={"Feast, dask": seconds["feast-dask"], "Feast, duckdb": seconds["feast-duckdb"]},
            bar=f"dask ≥ {TIMES_DASK} ×, duckdb ≥ {TIMES_DUCKDB} ×, the rows of Feast on duckdb"
            + ("" if alike else ": OTHER ROWS"),
            ok=alike and (quick or (by_dask >= TIMES_DASK and by_duckdb >= TIMES_DUCKDB)),
        ),
        Result(
            name="the same with event time and knowledge time, a tenth of the facts corrected later",
            value=both,
            unit="s",
            peers={"duckdb, all pairs of a key": seconds["duckdb"]},
            ratio=both / seconds["duckdb"],
            bar="the rows of duckdb" + ("" if exact else ": OTHER ROWS"),
            ok=exact,
        ),
    ]


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    raise SystemExit(emit(measure(quick=arguments.quick), json=arguments.json))

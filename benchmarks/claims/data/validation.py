"""Cost of validation beside hand-written polars: a large frame, and a year of small ones.

* 5,000,000 rows × 8 rules in one partition, against the same rules as one polars query written by hand
  (fastest round of each: other work on the machine only adds)
* 365 days × 85 columns validated in one call, against the same call day by day (20 days, extrapolated)
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl

from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.contract import Contract

ROWS = 5_000_000
MOST_DAYS = 12
"""Most time of all days at once, in days validated by themselves."""
LARGE = Contract.model_validate(
    {
        "columns": [
            {"name": "delay", "dtype": "int64", "ge": 0, "le": 100},
            {"name": "speed", "dtype": "float64", "ge": 0},
            {"name": "origin", "dtype": "string", "isin": ["EWR", "JFK", "LGA"]},
            {"name": "tail", "dtype": "string", "pattern": "N[0-9]{4}"},
            {"name": "note", "dtype": "float32", "nullable": True},
            {"name": "night", "dtype": "bool", "nullable": True},
        ]
    }
)
"""Eight rules: four columns may not be null; a range, a lower bound, categories, a pattern."""


def large_frame(rows: int) -> pl.DataFrame:
    """Return rows that break no rule."""
    random = np.random.default_rng(0)
    tails = pl.Series([f"N{number:04d}" for number in range(4000)])
    return pl.DataFrame(
        {
            "delay": random.integers(0, 100, rows),
            "speed": random.random(rows),
            "origin": pl.Series(["EWR", "JFK", "LGA"])[random.integers(0, 3, rows)],
            "tail": tails[random.integers(0, 4000, rows)],
            "note": random.random(rows).astype(np.float32),
            "night": random.random(rows) < 0.5,
        }
    )


def by_hand(frame: pl.DataFrame) -> pl.DataFrame:
    """Apply the eight rules by hand, without a contract: failing rows per rule, in one pass."""
    delay, speed, origin, tail = (pl.col(name) for name in ("delay", "speed", "origin", "tail"))
    return frame.select(
        delay_null=delay.is_null().sum(),
        delay_range=(~delay.is_between(0, 100)).sum(),
        speed_null=(speed.is_null() | speed.is_nan()).sum(),
        speed_range=(speed < 0).sum(),
        origin_null=origin.is_null().sum(),
        origin_unknown=(~origin.is_in(["EWR", "JFK", "LGA"])).sum(),
        tail_null=tail.is_null().sum(),
        tail_form=(~tail.str.contains("^N[0-9]{4}$")).sum(),
    )


def year(days: int) -> tuple[dict[str, pl.DataFrame], dict[str, tuple[date, date]], Contract]:
    """Return a table of 85 columns and about 920 rows a day, with a key and event times, that breaks no rule."""
    random = np.random.default_rng(1)
    numbers = [f"x{index}" for index in range(80)]
    frames: dict[str, pl.DataFrame] = {}
    bounds: dict[str, tuple[date, date]] = {}
    for offset in range(days):
        first = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=offset)
        rows = int(random.integers(634, 1015))
        columns = {
            "at": [first + timedelta(seconds=60 * row) for row in range(rows)],
            "flight": np.arange(rows),
            "carrier": pl.Series(["UA", "AA", "B6", "DL"])[random.integers(0, 4, rows)],
            "origin": pl.Series(["EWR", "JFK", "LGA"])[random.integers(0, 3, rows)],
            "label": random.random(rows) < 0.25,
        }
        columns |= {name: random.random(rows).astype(np.float32) for name in numbers}
        key = first.date().isoformat()
        frames[key] = pl.DataFrame(columns, schema_overrides={"at": pl.Datetime("us", "UTC")})
        bounds[key] = (first.date(), first.date())
    contract = Contract.model_validate(
        {
            "primary_key": ["flight", "origin", "carrier"],
            "event_time": "at",
            "columns": [
                {"name": "at", "dtype": "datetime"},
                {"name": "flight", "dtype": "int64", "ge": 0},
                {"name": "carrier", "dtype": "string", "isin": ["UA", "AA", "B6", "DL"]},
                {"name": "origin", "dtype": "string", "isin": ["EWR", "JFK", "LGA"]},
                {"name": "label", "dtype": "bool"},
                {"names": numbers, "dtype": "float32", "ge": 0, "le": 1},
            ],
        }
    )
    return frames, bounds, contract


def clean(check: Callable[[], Mapping[str, Sequence[object]]]) -> Callable[[], None]:
    """Run the check. Raise if it finds something, because then it would not be the same work."""

    def run() -> None:
        found = {key: findings for key, findings in check().items() if findings}
        if found:
            raise SystemExit(f"the benchmark's own data breaks its contract: {found}")

    return run


def main() -> int:
    """Measure both claims."""
    arguments = parse_args(__doc__)
    days, rounds = (60, 5) if arguments.quick else (365, 9)
    frame = large_frame(ROWS)
    large = interleave(
        {
            "ours": clean(lambda: check_partitions({"all": frame}, LARGE)),
            "hand-written polars": lambda: by_hand(frame),
        },
        rounds,
    )
    ours, hand = large["ours"].best, large["hand-written polars"].best
    frames, bounds, contract = year(days)
    few = 20
    yearly = interleave(
        {
            "ours": clean(lambda: check_partitions(frames, contract, bounds=bounds)),
            "day by day": lambda: [
                check_partitions({key: frames[key]}, contract, bounds=bounds) for key in list(frames)[:few]
            ],
        },
        3,
    )
    at_once, one_by_one = yearly["ours"].median, yearly["day by day"].median * days / few
    return emit(
        [
            Result(
                name=f"validate {ROWS:,} rows × 8 rules",
                value=ours,
                unit="s",
                peers={"hand-written polars": hand},
                ratio=ours / hand,
                bar="≤ 1.25 × hand-written polars",
                ok=ours <= 1.25 * hand,
            ),
            Result(
                name=f"validate {days} days × 85 columns in one call",
                value=at_once,
                unit="s",
                peers={"day by day": one_by_one},
                ratio=at_once / one_by_one,
                bar=f"≤ {MOST_DAYS}/{days} × day by day",
                ok=at_once <= one_by_one / days * MOST_DAYS,
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""An environment on 100 tables × 1,000 daily partitions: the time to create, list, compare, merge and drop it.

Of the tables, 5 are built anew in the environment by other code, 5,000 partitions. The merge must move them without a
rebuild: no object is written. Compared with a copy of the same files, as somebody without versions makes it. The CPU
seconds of each step are beside its wall seconds, which other work on the machine stretches.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.environments import (
    changes_of,
    create_environment,
    drop_environment,
    merge_environment,
)
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings

_FIRST = date(2013, 1, 1)
_CONTRACT = Contract.model_validate(
    {
        "primary_key": ["day", "item"],
        "columns": [
            {"name": "day", "dtype": "date"},
            {"name": "item", "dtype": "int64"},
            {"name": "x", "dtype": "float64"},
        ],
    }
)


def spec(number: int, code: str) -> TableSpec:
    """Return one of the tables."""
    return TableSpec(
        kind="datasets",
        name=f"t{number:03}",
        contract=_CONTRACT,
        cadence=Cadence("daily", _FIRST),
        volume=VolumeRule(),
        code_version=code,
    )


def fill(platform: Platform, tables: Sequence[int], days: int, code: str, factor: float) -> None:
    """Publish all days of some tables, a table at a time."""
    import polars as pl

    run = PublishingRun(run_id=f"run-{code}", url="", author="ada")
    keys = [_FIRST + timedelta(number) for number in range(days)]
    for number in tables:
        frames = [
            Incoming(
                key=key.isoformat(),
                data=pl.DataFrame(
                    {"day": [key] * 4, "item": [0, 1, 2, 3], "x": [factor * (number + at) for at in range(4)]}
                ),
            )
            for key in keys
        ]
        result = publish(platform.lake, platform.ledger, spec(number, code), frames, run, NOTHING_DECLARED)
        if result.rejected or result.failed:
            raise SystemExit(f"{number}: {result.rejected} {result.failed}")


_CPU = "CPU seconds"
MOST = 0.14
"""Longest time of a command, as a share of the copy of all files."""


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall seconds and the CPU seconds of `work`."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu


def objects(home: Path) -> tuple[int, int]:
    """Return number and bytes of the objects in the lake."""
    files = list((home / "lake").glob("*/objects/*/*"))
    return len(files), sum(file.stat().st_size for file in files)


def copy_plainly(home: Path, target: Path) -> float:
    """Return the seconds of a copy of all objects."""
    seconds, _ = timed(lambda: shutil.copytree(home / "lake", target))
    shutil.rmtree(target)
    return seconds


def main() -> int:
    arguments = parse_args(__doc__)
    tables, days = (10, 100) if arguments.quick else (100, 1000)
    changed = range(tables // 20 or 1)
    size = f"{tables} tables × {days} partitions"
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        platform = Platform(Settings(home=home))
        fill(platform, range(tables), days, "v1", 1.0)
        before = objects(home)
        create, create_cpu = timed(lambda: create_environment(Platform(Settings(home=home)), "fast", "ada"))
        added = objects(home)[1] - before[1]
        ledger = sum(
            file.stat().st_size for file in (home / "environments").rglob("ledger.db*") if file.is_file()
        )
        one = platform.inside("fast").environment
        if one is None:
            raise SystemExit("The environment was not created.")
        fill(platform.inside("fast"), changed, days, "v2", 2.0)
        listing, listing_cpu = timed(lambda: changes_of(platform, one))
        built = objects(home)
        wanted = {
            number: TableReader.at(platform.inside("fast").lake).digests(spec(number, "v2").table)
            for number in changed
        }
        merge, merge_cpu = timed(
            lambda: merge_environment(Platform(Settings(home=home)), "fast", Person.unchecked("ada"))
        )
        rebuilt = objects(home)[0] - built[0]
        reader = TableReader.at(platform.lake)
        for number in changed:
            declared = DeclaredTables([DeclaredTable.of(spec(number, "v2"))])
            table = spec(number, "v2").table
            if reader.digests(table) != wanted[number]:
                raise SystemExit(f"{table} is not on main as it was built.")
            found = validate_window(reader, platform.ledger, declared, table, list(wanted[number]))
            rebuilt += len(found.stale) + len(found.barred)
        drop, _ = timed(lambda: drop_environment(platform, "fast"))
        copy = copy_plainly(home, home / "copy")
    moved = len(changed) * days
    bar = f"≤ {MOST:g} × copy of all files"
    return emit(
        [
            Result(
                name=f"environment on {size}: create",
                value=create,
                unit="s",
                peers={_CPU: create_cpu, "copy of all files": copy},
                ratio=create / copy,
                bar=bar,
                ok=arguments.quick or create <= MOST * copy,
            ),
            Result(
                name=f"its data bytes (its ledger has {ledger / 1e6:.0f} MB)",
                value=added,
                unit="bytes",
                bar="0",
                ok=added == 0,
            ),
            Result(
                name=f"list {moved:,} changed partitions",
                value=listing,
                peers={_CPU: listing_cpu},
                unit="s",
                bar=bar,
                ok=arguments.quick or listing <= MOST * copy,
            ),
            Result(
                name=f"merge {moved:,} partitions",
                value=merge,
                peers={_CPU: merge_cpu},
                unit="s",
                bar=bar,
                ok=arguments.quick or merge <= MOST * copy,
            ),
            Result(
                name="objects written, and partitions to rebuild, after the merge",
                value=rebuilt,
                unit="",
                bar="0",
                ok=rebuilt == 0,
            ),
            Result(name="drop", value=drop, unit="s", bar=bar, ok=arguments.quick or drop <= MOST * copy),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""Training set from 0.25 and 1 GB of Parquet: peak memory, and CPU time beside the builder that held all rows; the time
of one and of two workers.

A table of 128 columns in daily partitions, of which a training set reads 28. Each build is a process of its own. Its
memory is private (`RssAnon`): pages of mapped files belong to the system, which may drop them. The former builder is
taken from the history of this repository; it builds the smallest table. Workers build a table of 28 columns, all read;
their wall times need two idle cores. `--quick` builds 0.25 GB, and with sizes as
arguments, in GB, others: `training_set_memory.py 1 4 16`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._memory import resident_kib
from benchmarks._report import Result, emit, parse_args, ratio_of
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import PartitionFiles
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, split_by_time
from ml_assets.data.snapshots.split_reader import SourceValues
from ml_assets.foundation.checkout import ROOT
from resources.pool import HERE
from resources.pool.processes import ProcessPool

FORMER = "69c86b03"
"""Commit of the builder that held all rows in memory."""
ROUNDS = 3
SIZES, QUICK = (0.25, 1.0), (0.25,)
"""GB of Parquet."""
BY_WORKERS, QUICK_BY_WORKERS = 0.5, 0.1
"""GB of Parquet that workers build from."""
OF_IDEAL, MOST_CPU_OF_WORKERS = 0.7, 1.25
"""Bars: wall time of one worker divided by that of two, and by two; CPU time of two workers and their run as a multiple
of that of one process."""
NUMBERS, CATEGORIES = 105, 20
ROWS = 40_000
"""Rows of a partition."""
NUMERIC, CATEGORICAL = [f"x{i}" for i in range(20)], [f"c{i}" for i in range(5)]
"""Columns that are read, with day, label and its time: 28."""
FIRST = date(2010, 1, 1)
SPEC = RowSpec(
    partition="day",
    label="label",
    label_known_at="known",
    cutoffs=Cutoffs.all_at(datetime(2200, 1, 1, tzinfo=UTC)),
)
MOST_GIB, MOST_CPU, FLAT = 1.5, 1.2, 1.1
"""Bars: peak memory; CPU time as a multiple of the former builder's; peak of the largest table as a multiple of that of
the one before."""

_BY_FORMER = """
import sys, time, resource
from datetime import UTC, datetime
from pathlib import Path
import polars as pl
from ml_assets.data.features.encoding import fit
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, RowSpec, split_by_time
from ml_assets.data.snapshots.split_reader import SourceValues
table, into, numeric, categorical = sys.argv[1], sys.argv[2], sys.argv[3].split(), sys.argv[4].split()
files = sorted(Path(table).iterdir())
days = [file.stem for file in files]
spec = RowSpec(partition="day", label="label", label_known_at="known",
               cutoffs=Cutoffs.all_at(datetime(2200, 1, 1, tzinfo=UTC)))
split = split_by_time(days, train=len(days) - 2, validation=1, holdout=1)
began = time.process_time()
chosen = choose_rows(pl.scan_parquet(files, glob=False), split, spec)
fitted = fit(chosen.of("train"), numeric, categorical)
made = build_snapshot(chosen, fitted, source=SourceValues(table="features/wide"), into=Path(into))
print(time.process_time() - began, made.digest)
"""


def write_table(folder: Path, gigabytes: float, numbers: int = NUMBERS, categories: int = CATEGORIES) -> None:
    """Write daily partitions of random rows to `folder` until they have the size; at least three."""
    random = np.random.default_rng(0)
    block = random.standard_normal((2 * ROWS, numbers), dtype=np.float32)
    words = pl.Series([f"word {i}" for i in range(50_000)])
    drawn = [random.zipf(1.3, 2 * ROWS) % len(words) for _ in range(categories)]
    written, number = 0, 0
    while written < gigabytes * 1e9 or number < 3:
        day, begin = FIRST + timedelta(days=number), int(random.integers(0, ROWS))
        rows = slice(begin, begin + ROWS)
        frame = pl.DataFrame(
            {
                "day": pl.repeat(day, ROWS, eager=True),
                "label": pl.Series(block[rows, 0] > 0).cast(pl.Int8),
                "known": pl.repeat(datetime(2010, 1, 2, tzinfo=UTC), ROWS, eager=True),
                **{f"x{i}": block[rows, i] for i in range(numbers)},
                **{f"c{i}": words.gather(column[rows]) for i, column in enumerate(drawn)},
            }
        )
        file = folder / f"{day}.parquet"
        frame.write_parquet(file, compression="uncompressed")
        written, number = written + file.stat().st_size, number + 1


def build(table: Path, into: Path, workers: int = 0) -> None:
    """Build the training set of a table by workers, 0: in this process; print the CPU seconds of all, the digest, the
    wall seconds, and the CPU seconds of pass A, without those of imports."""
    partitions = [PartitionFiles(key=file.stem, rows=ROWS, files=(file,)) for file in sorted(table.iterdir())]
    split = split_by_time([one.key for one in partitions], train=len(partitions) - 2, validation=1, holdout=1)
    inputs = InputColumns(numeric=tuple(NUMERIC), categorical=tuple(CATEGORICAL))
    began, before = time.perf_counter(), _cpu_seconds()
    with (ProcessPool(workers, 0) if workers else HERE).kept() as pool:
        chosen = choose_rows(partitions, split, SPEC, inputs, into=into, pool=pool)
        fitted = _cpu_seconds() - before
        made = build_snapshot(
            chosen, source=SourceValues(table="features/wide"), into=into, pool=pool, here=pool
        )
    print(_cpu_seconds() - before, made.digest, time.perf_counter() - began, fitted)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that ended."""
    return sum(os.times()[:4])


def measured(command: Sequence[str], root: Path) -> tuple[float, float, str]:
    """Run a build in a process; return its CPU seconds, its peak of private memory in GiB, and the digest."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, *command], cwd=root, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _private_kib(process.pid))
            time.sleep(0.02)
        seconds, digest, *_ = (process.stdout.read() if process.stdout else "").split()
    return float(seconds), peak / 2**20, digest


def _private_kib(pid: int) -> int:
    try:
        return resident_kib(pid)["RssAnon"]
    except (FileNotFoundError, ProcessLookupError):
        return 0


def former_builder(folder: Path) -> None:
    """Unpack the code of the former builder into `folder`."""
    archive = subprocess.run(
        ["git", "archive", FORMER, "ml_assets", "resources"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


def against_former(table: Path, folder: Path) -> list[Result]:
    """Build the same table by both builders in turn; return CPU time and peak."""
    former = folder / "former"
    former.mkdir()
    former_builder(former)
    names = [" ".join(NUMERIC), " ".join(CATEGORICAL)]
    ours: list[tuple[float, float, str]] = []
    theirs: list[tuple[float, float, str]] = []
    for number in range(ROUNDS):
        ours.append(measured([__file__, "build", str(table), str(folder / f"ours-{number}")], ROOT))
        theirs.append(
            measured(["-c", _BY_FORMER, str(table), str(folder / f"theirs-{number}"), *names], former)
        )
    if len({digest for *_, digest in (*ours, *theirs)}) > 1:
        raise SystemExit("the builders wrote different snapshots")
    ratio = ratio_of([seconds for seconds, *_ in ours], [seconds for seconds, *_ in theirs])
    size = sum(file.stat().st_size for file in table.iterdir()) / 1e9
    title = f"training set from {size:.2f} GB of Parquet, 28 of 128 columns, the same digest"
    return [
        Result(
            name=f"{title}: CPU time, {ratio.spread}",
            value=round(min(seconds for seconds, *_ in ours), 2),
            unit="s",
            peers={"builder in memory": round(min(seconds for seconds, *_ in theirs), 2)},
            ratio=round(ratio.median, 2),
            bar=f"≤ {MOST_CPU:g} × the builder in memory",
            ok=ratio.median <= MOST_CPU,
        ),
        Result(
            name=f"{title}: peak of private memory",
            value=round(max(peak for _, peak, _ in ours), 3),
            unit="GiB",
            peers={"builder in memory": round(max(peak for _, peak, _ in theirs), 3)},
            bar="shown",
            ok=True,
        ),
    ]


def by_workers(gigabytes: float, rounds: int) -> list[Result]:
    """Build the same table in one process, and by one and two workers in turn; return digests, wall and CPU times."""
    ways = {"in process": 0, "1 worker": 1, "2 workers": 2}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    wall: dict[str, list[float]] = {name: [] for name in ways}
    digests: set[str] = set()
    with tempfile.TemporaryDirectory() as temporary:
        table = Path(temporary) / "table"
        table.mkdir()
        write_table(table, gigabytes, len(NUMERIC), len(CATEGORICAL))
        own = os.environ | {"PYTHONPATH": str(ROOT)}
        for number in range(rounds):
            for name, workers in ways.items():
                into = Path(temporary) / f"{number}-{workers}"
                command = [sys.executable, __file__, "build", str(table), str(into), str(workers)]
                done = subprocess.run(
                    command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True, check=True
                )
                seconds, digest, took = done.stdout.split()
                shutil.rmtree(into)
                cpu[name].append(float(seconds))
                wall[name].append(float(took))
                digests.add(digest)
    faster = ratio_of(wall["1 worker"], wall["2 workers"])
    dearer = ratio_of(cpu["2 workers"], cpu["in process"])
    title = f"training set from {gigabytes:g} GB of Parquet, all columns read"
    return [
        Result(
            name=f"{title}: different digests over all pools",
            value=len(digests),
            unit="digests",
            bar="1: equal",
            ok=len(digests) == 1,
        ),
        Result(
            name=f"{title}: 2 workers, wall time ({faster.spread}); needs two idle cores",
            value=round(min(wall["2 workers"]), 2),
            unit="s",
            peers={name: round(min(wall[name]), 2) for name in ("in process", "1 worker")},
            ratio=round(faster.median / 2, 2),
            bar=f"≥ {OF_IDEAL:g} of ideal against 1 worker",
            ok=faster.median / 2 >= OF_IDEAL,
        ),
        Result(
            name=f"{title}: 2 workers, CPU time of all processes ({dearer.spread})",
            value=round(min(cpu["2 workers"]), 2),
            unit="s",
            peers={name: round(min(cpu[name]), 2) for name in ("in process", "1 worker")},
            ratio=round(dearer.median, 2),
            bar=f"≤ {MOST_CPU_OF_WORKERS:g} × in process",
            ok=dearer.median <= MOST_CPU_OF_WORKERS,
        ),
    ]


def main() -> int:
    """Measure each size; return the exit status."""
    if sys.argv[1:2] == ["table"]:
        write_table(Path(sys.argv[2]), float(sys.argv[3]))
        return 0
    if sys.argv[1:2] == ["build"]:
        build(Path(sys.argv[2]), Path(sys.argv[3]), int((sys.argv[4:] or ["0"])[0]))
        return 0
    given = [float(one) for one in sys.argv[1:] if not one.startswith("-")]
    sys.argv = [one for one in sys.argv if one == sys.argv[0] or one.startswith("-")]
    args = parse_args(__doc__)
    results: list[Result] = []
    peaks: list[float] = []
    for size in given or (QUICK if args.quick else SIZES):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            table = folder / "table"
            table.mkdir()
            own = os.environ | {"PYTHONPATH": str(ROOT)}
            command = [sys.executable, __file__, "table", str(table), str(size)]
            subprocess.run(command, cwd=ROOT, env=own, check=True)
            if not peaks:
                results += against_former(table, folder)
            _, peak, _ = measured([__file__, "build", str(table), str(folder / "snapshots")], ROOT)
        flat = f"; ≤ {FLAT:g} × that of the size before" if peaks else ""
        results.append(
            Result(
                name=f"training set from {size:g} GB of Parquet: peak of private memory",
                value=round(peak, 3),
                unit="GiB",
                ratio=round(peak / peaks[-1], 2) if peaks else None,
                bar=f"≤ {MOST_GIB:g} GiB{flat}",
                ok=peak <= MOST_GIB and (not peaks or peak <= FLAT * peaks[-1]),
            )
        )
        peaks.append(peak)
    if not given:
        results += by_workers(*((QUICK_BY_WORKERS, 1) if args.quick else (BY_WORKERS, ROUNDS)))
    return emit(results, json=args.json)


if __name__ == "__main__":
    raise SystemExit(main())

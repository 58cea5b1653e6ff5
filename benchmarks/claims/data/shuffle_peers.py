"""Shuffle of a table's rows into shards: passes of a training set beside Ray Data and Daft.

The peers read 28 of 128 columns, put the rows into another order and write Parquet. Ours reads the same columns twice:
pass A checks rows and fits medians and vocabularies, which no peer does; the shuffle is passes B and C, which also
encode, and write shards with digests. CPU seconds and memory are those of all processes, with their imports: private
memory of each, and shared memory once, which is Ray's store of objects. `--gigabytes` chooses the table, `--quick`
takes 0.25 GB, `--peers` leaves one out. The first run makes the peers' environment.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks._memory import resident_kib
from benchmarks._peers import SCRIPTS, peers_python
from benchmarks._report import Result, emit
from benchmarks.claims.data import training_set_memory
from ml_assets.foundation.checkout import ROOT

PEERS = ("ray[data]==2.60.0", "daft==0.7.26", "aiohttp")
NAMES = ("Ray Data", "Daft")
GIGABYTES, QUICK_GIGABYTES = 1.0, 0.25
LEAST = 2.0
"""Bar: CPU time and memory of a peer, as a multiple of ours."""
_EVERY_SECONDS = 0.1


@dataclass(frozen=True)
class ShuffleCosts:
    """Costs of one shuffle, of all its processes."""

    seconds: float
    """CPU time."""
    gib: float
    """Peak of memory."""
    printed: str
    """All that it printed."""


def spent(command: Sequence[str | Path]) -> ShuffleCosts:
    """Run `command`; return what it and its children cost. Raises `SystemExit` if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        seconds: dict[tuple[int, float], float] = {}
        peak = 0
        while process.poll() is None:
            private = shared = 0
            parent = psutil.Process(process.pid)
            for one in (parent, *parent.children(recursive=True)):
                try:
                    times, held = one.cpu_times(), resident_kib(one.pid)
                except (psutil.NoSuchProcess, psutil.ZombieProcess, FileNotFoundError, ProcessLookupError):
                    continue
                seconds[one.pid, one.create_time()] = times.user + times.system
                private, shared = private + held["RssAnon"], max(shared, held["RssShmem"])
            peak = max(peak, private + shared)
            time.sleep(_EVERY_SECONDS)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{command[1]} ended with {process.returncode}: {log.read()[-2000:]}")
        log.seek(0)
        return ShuffleCosts(sum(seconds.values()), peak / 2**20, log.read())


def main() -> int:
    """Measure each way once; return exit status 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=GIGABYTES, help="Parquet of the table")
    parser.add_argument("--peers", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_GIGABYTES:g} GB")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    arguments = parser.parse_args()
    gigabytes = QUICK_GIGABYTES if arguments.quick else arguments.gigabytes
    python, read = peers_python("shuffle-peers", PEERS), training_set_memory
    columns = " ".join(("x0", "x1", "x2", "day", "label", "known", *read.NUMERIC[3:], *read.CATEGORICAL))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        table = folder / "table"
        table.mkdir()
        read.write_table(table, gigabytes)
        found = {
            name: spent(
                [python, "-P", SCRIPTS / "bare_shuffle_peers.py", name, table, folder / name, columns]
            )
            for name in arguments.peers
        }
        ours = spent([sys.executable, str(read.__file__), "build", table, folder / "ours"])
    pass_a = float(ours.printed.split()[-1])
    seconds, gib = ({name: getattr(one, what) for name, one in found.items()} for what in ("seconds", "gib"))
    results = [
        _beside(f"rows of {gigabytes:g} GB into shards, {what}", value, unit, peers, bar=bar)
        for what, value, unit, peers, bar in (
            ("CPU time of the shuffle", ours.seconds - pass_a, "s", seconds, True),
            ("CPU time with pass A", ours.seconds, "s", seconds, False),
            ("peak of memory", ours.gib, "GiB", gib, True),
        )
    ]
    return emit(results, json=arguments.json)


def _beside(name: str, value: float, unit: str, peers: Mapping[str, float], *, bar: bool) -> Result:
    """Return a figure beside those of the peers, judged by `LEAST` if it has a bar."""
    least = min(peers.values()) / value
    return Result(
        name=name,
        value=round(value, 3),
        unit=unit,
        peers={one: round(theirs, 3) for one, theirs in peers.items()},
        ratio=round(1 / least, 3),
        bar=f"≤ 1/{LEAST:g} × each peer" if bar else "shown",
        ok=not bar or least >= LEAST,
    )


if __name__ == "__main__":
    raise SystemExit(main())

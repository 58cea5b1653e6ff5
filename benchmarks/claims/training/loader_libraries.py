"""Feeding rows: our lanes beside mosaicml-streaming and litdata, which also resume in the middle of an epoch.

Runs only by name (`make bench ARGS=loader_libraries`). The first run makes their own environment of about 6 GB, because
both need torchvision and one needs an old numpy. An item is a row, as they expect. They read fewer rows than ours,
whose epoch would end too soon to be timed. Torch's own loader with these rows: `loader`.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks._peers import SCRIPTS, peers_python
from benchmarks._report import Result, emit, interleave, parse_args
from benchmarks.claims.training.loader import (
    BATCH,
    COLUMNS,
    LEAST_FASTER,
    feed_epoch,
    open_training,
    write_snapshot,
)

PEERS = ("litdata==0.2.76", "mosaicml-streaming==0.13.0", "torch==2.13.0", "torchvision")
NAMES = ("mosaicml-streaming", "litdata")


def measure_peer(peer: str, numbers: Path, folder: Path) -> dict[str, float]:
    """Return the rows per second by number of workers."""
    work = folder / peer
    (work / "data").mkdir(parents=True)
    done = subprocess.run(
        [
            peers_python("loader-peers", PEERS),
            "-P",  # otherwise a script's folder comes first, and a file in it has the name of a peer's package
            SCRIPTS / "bare_loader_peers.py",
            peer,
            numbers,
            work / "data",
            str(BATCH),
        ],
        # Their caches and telemetry have no place in a measurement.
        env=os.environ | {"PYTHONPATH": "", "DO_NOT_TRACK": "1", "HOME": str(work)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{peer} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure and decide."""
    arguments = parse_args(__doc__)
    rows, peer_rows, rounds = (200_000, 20_000, 2) if arguments.quick else (1_000_000, 200_000, 5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        reader, order = open_training(write_snapshot(folder, rows))
        numbers = folder / "numbers.npy"
        np.save(numbers, np.random.default_rng(0).normal(size=(peer_rows, COLUMNS)).astype(np.float32))
        ours = order.units / interleave({"ours": lambda: feed_epoch(reader, order)}, rounds)["ours"].median
        peers = {
            f"{peer}, {workers}": rate
            for peer in NAMES
            for workers, rate in measure_peer(peer, numbers, folder).items()
        }
    best = max(peers.values())
    return emit(
        Result(
            name=f"rows fed: {rows:,} x {COLUMNS} float32, shuffled, exact place",
            value=ours,
            unit="rows/s",
            peers=peers,
            ratio=ours / best,
            bar=f"≥ {LEAST_FASTER} x the fastest of them",
            ok=ours >= LEAST_FASTER * best,
        ),
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())

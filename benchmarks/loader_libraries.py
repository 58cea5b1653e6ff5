"""Feeding rows: our lanes beside mosaicml-streaming and litdata, which also go on in the middle of an epoch.

Runs when named (`make bench ARGS=loader_libraries`): the first run makes an environment of their own, some 6 GB, for
both need torchvision and one an old numpy. A sample is a row, as they expect; they read fewer rows than ours, whose
epoch would be over too soon to be timed. What torch's own loader does with these rows: `loader`.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks._report import Result, emit, interleave, parse_args
from benchmarks.loader import BATCH, COLUMNS, LEAST_FASTER, feed_epoch, open_training, write_snapshot

PEERS = ("litdata==0.2.76", "mosaicml-streaming==0.13.0", "torch==2.13.0", "torchvision")
NAMES = ("mosaicml-streaming", "litdata")


def peers_python() -> Path:
    """The interpreter of the peers' environment, made where it is not there."""
    home = Path(os.environ.get("ML_ASSETS_BUILD_CACHE", Path.home() / ".cache/ml-assets")) / "loader-peers"
    python, done = home / "bin" / "python", home / "installed"
    if not done.exists() or done.read_text() != "\n".join(PEERS):
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--clear", home], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *PEERS], check=True)
        done.write_text("\n".join(PEERS))
    return python


def measure_peer(peer: str, numbers: Path, folder: Path) -> dict[str, float]:
    """Rows a second by number of workers."""
    work = folder / peer
    (work / "data").mkdir(parents=True)
    done = subprocess.run(
        [
            peers_python(),
            "-P",  # a script's folder comes first otherwise, and one beside it is called as a peer's package is
            Path(__file__).with_name("bare_loader_peers.py"),
            peer,
            numbers,
            work / "data",
            str(BATCH),
        ],
        # What they keep for later and where they report to has no place in a measurement.
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
        ours = order.rows / interleave({"ours": lambda: feed_epoch(reader, order)}, rounds)["ours"].median
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

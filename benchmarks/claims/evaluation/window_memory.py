"""Peak memory and CPU time of an evaluation, by the size of its window: 28 of 128 columns are read.

Each evaluation is the whole step (bundle, scores, bootstrap, worst slices, explanations, report, ledger) in its own
process. Measured is private memory: pages of the Parquet files that the kernel maps do not count. The holdout has
200,000 rows in every window; the training rows grow. Before each evaluation, the table is published and a model trained
on four of its partitions, which is not measured.

`--gigabytes 1 4 16` chooses the windows, in GB of Parquet; `--home FOLDER` keeps the table for another run.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit
from benchmarks.claims.evaluation import _wide_window as wide
from ml_assets.foundation.checkout import ROOT

GIGABYTES, QUICK = (0.4, 0.8, 1.6), (0.4, 0.8)
PARTITION_GB = 0.0252
MOST_GIB, MOST_GROWTH = 1.5, 1.1
_EVERY_SECONDS = 0.02
TAKEN = "taken.pickle"
"""File with the values of the two steps before the evaluation."""


def private_bytes() -> int:
    """Return the private memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) << 10 for name in ("Private_Clean", "Private_Dirty"))


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Measure the block: `gib`, its peak of private memory, and `seconds` of CPU time."""
    found, done = {"gib": 0.0, "seconds": 0.0}, threading.Event()

    def look() -> None:
        while not done.wait(_EVERY_SECONDS):
            found["gib"] = max(found["gib"], private_bytes() / 2**30)

    thread = threading.Thread(target=look)
    thread.start()
    began = time.process_time()
    try:
        yield found
    finally:
        found["seconds"] = time.process_time() - began
        done.set()
        thread.join()


def platform_of(home: Path) -> Any:
    """Return the installation in this home."""
    from resources.platform import Platform
    from resources.settings import Settings

    return Platform(Settings.model_validate({"home": home}))


def make(home: Path, partitions: int) -> dict[str, float]:
    """Publish the table and train the model."""
    platform = platform_of(home)
    wide.publish_partitions(platform, partitions)
    if not (home / TAKEN).exists():
        (home / TAKEN).write_bytes(pickle.dumps(wide.train_small(platform)))
    return {}


def evaluation(home: Path, partitions: int) -> dict[str, float]:
    """Evaluate a window of the first partitions, and measure."""
    from ml_assets.model.steps.evaluate import evaluate_model

    platform = platform_of(home)
    training_set, trained = pickle.loads((home / TAKEN).read_bytes())
    spec, training_set = wide.window_of(platform, training_set, partitions, home / f"window-{partitions}")
    before = private_bytes() / 2**30
    with watched() as found:
        evaluate_model(spec, platform, training_set, trained, f"run-{time.time_ns()}")
    return {**found, "before": before}


def in_child(action: str, home: Path, partitions: int) -> dict[str, float]:
    """Run `make` or `evaluation` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, action, str(home), str(partitions)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    if sys.argv[1:2] in (["make"], ["evaluation"]):
        action = make if sys.argv[1] == "make" else evaluation
        print(json.dumps(action(Path(sys.argv[2]), int(sys.argv[3]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller windows")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--gigabytes", type=float, nargs="+", help="windows, in GB of Parquet")
    parser.add_argument("--home", type=Path, help="folder that keeps the table")
    arguments = parser.parse_args()
    sizes = arguments.gigabytes or (QUICK if arguments.quick else GIGABYTES)
    with tempfile.TemporaryDirectory() as scratch:
        home = arguments.home or Path(scratch)
        windows = [round(size / PARTITION_GB) for size in sizes]
        in_child("make", home, max(windows))
        found = {window: in_child("evaluation", home, window) for window in windows}
    smallest = found[min(found)]
    return emit(
        [
            Result(
                name=f"evaluation of a window of {window * PARTITION_GB:.1f} GB, {window * wide.ROWS:,} rows: "
                f"peak private memory ({one['before']:.2f} GiB before it), {one['seconds']:.0f} s of CPU time",
                value=round(one["gib"], 3),
                unit="GiB",
                peers={"the smallest window": round(smallest["gib"], 3)},
                ratio=round(one["gib"] / smallest["gib"], 3),
                bar=f"≤ {MOST_GIB:g} GiB, ≤ {MOST_GROWTH:g} × the smallest window",
                ok=one["gib"] <= min(MOST_GIB, MOST_GROWTH * smallest["gib"]),
            )
            for window, one in found.items()
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())

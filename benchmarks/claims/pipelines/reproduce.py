"""The demo's model with `determinism: bitwise`, trained by 2 workers and reproduced by 1, 2 and 3.

Clones this repository's commit, declares `bitwise` there as a person would, and runs `ml-assets demo` and then
`ml-assets reproduce --workers N` as whole processes in an empty home. `--quick` trains for one epoch and reproduces
with 3 workers only.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args
from ml_assets.foundation.checkout import ROOT

PROGRAM = Path(sys.executable).with_name("ml-assets")
VERSION = "flight_delay/1"
PIPELINE = Path("ml_assets/defs/flights/flight_delay/defs.yaml")
WORKERS = (1, 2, 3)


def clone(tree: Path, *, quick: bool) -> None:
    """Clone the commit of this repository to `tree`, and commit `determinism: bitwise` there."""
    _git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(tree))
    text = (tree / PIPELINE).read_text()
    training = "  training:\n    epochs: 4\n"
    if text.count(training) != 1:
        raise SystemExit(f"{PIPELINE} does not declare four epochs any more: change this benchmark")
    epochs = 1 if quick else 4
    (tree / PIPELINE).write_text(
        text.replace(training, f"  training:\n    determinism: bitwise\n    epochs: {epochs}\n")
    )
    who = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
    _git(tree, *who, "commit", "--quiet", "--all", "--message", "bitwise")


def timed(tree: Path, home: Path, *arguments: str) -> tuple[float, dict[str, Any]]:
    """Run a command with the code of `tree`; return its wall seconds and the JSON of its last line."""
    began = time.perf_counter()
    done = subprocess.run(
        [PROGRAM, *arguments, "--json"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "ML_ASSETS_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if not lines:
        raise SystemExit(f"ml-assets {' '.join(arguments)} ended with exit status {done.returncode}")
    return time.perf_counter() - began, json.loads(lines[-1])


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    several = WORKERS[-1:] if arguments.quick else WORKERS
    seconds: dict[str, float] = {}
    compared: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree, home = Path(folder) / "tree", Path(folder) / "home"
        clone(tree, quick=arguments.quick)
        seconds["demo"], demo = timed(tree, home, "demo")
        for workers in several:
            way = f"reproduced by {workers}"
            seconds[way], facts = timed(tree, home, "reproduce", VERSION, "--workers", str(workers))
            compared[workers] = {one["what"]: one for one in facts["compared"]}
            if not arguments.json:
                print(f"{workers} workers: {facts['level']} in {seconds[way]:.0f} s")
                for one in facts["compared"]:
                    print(f"  {one['what']}: {one['recorded']}; again: {one['again']}")
    metrics = sorted(name for name in compared[several[0]] if name.startswith("holdout "))
    named = ", ".join(name.removeprefix("holdout ") for name in metrics)
    results = [
        Result(
            name=f"{VERSION} by 2 workers, {demo['stages']['flight_delay.train']:.0f} s of training; SHA-256 of the "
            f"weights equal when reproduced by {', '.join(map(str, several))}",
            value=sum(one["weights"]["recorded"] == one["weights"]["again"] for one in compared.values()),
            unit="trainings",
            bar=f"= {len(several)}",
            ok=all(one["weights"]["recorded"] == one["weights"]["again"] for one in compared.values()),
        ),
        Result(
            name=f"the same; holdout metrics ({named}) that differ in any digit",
            value=sum(
                one[name]["recorded"] != one[name]["again"] for one in compared.values() for name in metrics
            ),
            unit="metrics",
            bar="= 0",
            ok=bool(metrics)
            and all(
                one[name]["recorded"] == one[name]["again"] for one in compared.values() for name in metrics
            ),
        ),
        Result(
            name="seconds of a whole reproduction, the slowest",
            value=max(taken for way, taken in seconds.items() if way != "demo"),
            unit="s",
            peers=seconds,
            bar="none: the machine decides",
            ok=True,
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

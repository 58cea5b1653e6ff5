"""Features of a range by the pools: in one process, and in processes of this machine.

Every build is a process of its own on a copy of one lake. All objects must be equal. Wall times need an idle machine;
CPU seconds of all processes say what workers cost besides. `--quick` takes fewer days and one round.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args, ratio_of
from benchmarks.claims.data._pool_features import build, publish_clicks

DAYS, QUICK_DAYS = 48, 16
ROWS = 60_000
ROUNDS = 3
WAYS: dict[str, dict[str, Any]] = {
    "in process": {"pool": "in-process"},
    "1 worker": {"pool": "processes", "pool_workers": 1, "pool_after_seconds": 0},
    "2 workers": {"pool": "processes", "pool_workers": 2, "pool_after_seconds": 0},
}
OF_IDEAL = 0.85
MOST_CPU = 1.25


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    if sys.argv[1:2] == ["build"]:
        print(json.dumps(build(Path(sys.argv[2]), int(sys.argv[3]), **json.loads(sys.argv[4]))))
        return 0
    arguments = parse_args(__doc__)
    days, rounds = (QUICK_DAYS, 1) if arguments.quick else (DAYS, ROUNDS)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        publish_clicks(home, days, ROWS)
        for _ in range(rounds):
            for name, pool in WAYS.items():
                copy = Path(folder) / "copy"
                shutil.copytree(home, copy)
                command = [sys.executable, __file__, "build", str(copy), str(days), json.dumps(pool)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
                shutil.rmtree(copy)
                if not arguments.json:
                    last = found[name][-1]
                    print(f"{name}: {last['wall']:.1f} s, {last['cpu']:.1f} CPU s")
    digests = {one["digest"] for all_of in found.values() for one in all_of}
    wall = {name: [one["wall"] for one in all_of] for name, all_of in found.items()}
    cpu = {name: [one["cpu"] for one in all_of] for name, all_of in found.items()}
    faster = ratio_of(wall["1 worker"], wall["2 workers"])
    dearer = {name: ratio_of(cpu[name], cpu["in process"]) for name in list(WAYS)[1:]}
    size = f"features of {days} days of {ROWS:,} rows"
    results = [
        Result(
            name=f"{size}: different objects over all pools",
            value=len(digests),
            unit="digests",
            bar="1: equal",
            ok=len(digests) == 1,
        ),
        Result(
            name=f"{size}: 2 workers against 1, wall ({faster.spread}); needs two idle cores",
            value=faster.median / 2,
            unit="of ideal",
            bar=f"≥ {OF_IDEAL} of ideal",
            ok=faster.median / 2 >= OF_IDEAL,
        ),
        *(
            Result(
                name=f"{size}: {name}, CPU of all processes against one ({one.spread})",
                value=one.median,
                unit="×",
                bar=f"≤ {MOST_CPU} × in process" if name == "2 workers" else "shown",
                ok=name != "2 workers" or one.median <= MOST_CPU,
            )
            for name, one in dearer.items()
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

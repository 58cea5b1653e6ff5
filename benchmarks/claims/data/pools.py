"""Features of a range by the pools: in one process, and in processes of this machine.

Every build is a process of its own on a copy of one lake. All objects must be equal. One worker may use one core only,
with all of its threads and its parent; two workers use two. Where cores share memory and caches, two programs that know
nothing of each other slow down, too: two builds at once, each with one worker on a core of its own, show how much, and
two workers are compared with them. CPU seconds of all processes say what workers cost besides. `--quick` takes fewer
days and rows, and one round.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args, ratio_of
from benchmarks.claims.data._pool_features import build, publish_clicks

DAYS, QUICK_DAYS = 120, 16
ROWS, QUICK_ROWS = 240_000, 60_000
ROUNDS = 3
AT_ONCE: dict[str, Any] = {"pool_after_seconds": 0}
ONE, TWICE, TWO = "1 worker on one core", "two such builds at once, on two cores", "2 workers"
WAYS: dict[str, dict[str, Any]] = {
    "in process": {"pool": "in-process"},
    ONE: {"pool": "processes", "pool_workers": 1} | AT_ONCE,
    TWO: {"pool": "processes", "pool_workers": 2} | AT_ONCE,
}
OF_IDEAL = 0.85
MOST_CPU = 1.25


def begun(home: Path, days: int, pool: Mapping[str, Any], core: int | None = None) -> subprocess.Popen[str]:
    """Start a build in a process of its own, which may use one core alone if `core` says so."""
    command = [sys.executable, __file__, "build", str(home), str(days), json.dumps(pool)]
    bound = command if core is None else ["taskset", "--cpu-list", str(core), *command]
    return subprocess.Popen(bound, stdout=subprocess.PIPE, text=True)


def ended(build: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a build measured. Raises `SystemExit` if it failed."""
    printed = build.communicate()[0]
    if build.returncode:
        raise SystemExit(f"a build ended with status {build.returncode}")
    return json.loads(printed.splitlines()[-1])


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    if sys.argv[1:2] == ["build"]:
        print(json.dumps(build(Path(sys.argv[2]), int(sys.argv[3]), **json.loads(sys.argv[4]))))
        return 0
    arguments = parse_args(__doc__)
    days, rows, rounds = (QUICK_DAYS, QUICK_ROWS, 1) if arguments.quick else (DAYS, ROWS, ROUNDS)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    cores = {"in process": (None,), ONE: (first,), TWO: (None,), TWICE: (first, second)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cores}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        publish_clicks(home, days, rows)
        for _ in range(rounds):
            for name, of_builds in cores.items():
                copies = [Path(folder) / f"copy-{number}" for number in range(len(of_builds))]
                for copy in copies:
                    shutil.copytree(home, copy)
                pool = WAYS[ONE if name == TWICE else name]
                builds = [begun(copy, days, pool, core) for copy, core in zip(copies, of_builds, strict=True)]
                done = [ended(one) for one in builds]
                found[name].append(max(done, key=lambda one: one["wall"]))
                for copy in copies:
                    shutil.rmtree(copy)
                if not arguments.json:
                    last = found[name][-1]
                    print(f"{name}: {last['wall']:.1f} s, {last['cpu']:.1f} CPU s")
    digests = {one["digest"] for all_of in found.values() for one in all_of}
    wall = {name: [one["wall"] for one in all_of] for name, all_of in found.items()}
    cpu = {name: [one["cpu"] for one in all_of] for name, all_of in found.items()}
    faster, machine = ratio_of(wall[ONE], wall[TWO]), ratio_of(wall[ONE], wall[TWICE])
    of_ideal = ratio_of(wall[TWICE], wall[TWO])
    dearer = {name: ratio_of(cpu[name], cpu["in process"]) for name in (ONE, TWO)}
    size = f"features of {days} days of {rows:,} rows"
    results = [
        Result(
            name=f"{size}: different objects over all pools",
            value=len(digests),
            unit="digests",
            bar="1: equal",
            ok=len(digests) == 1,
        ),
        Result(
            name=f"{size}: 2 workers against 1 on one core, wall ({faster.spread})",
            value=faster.median,
            unit="× faster",
            peers={f"{TWICE}, the work of both": 2 * machine.median},
            ratio=of_ideal.median / 2,
            bar=f"≥ {OF_IDEAL} × the builds that share nothing but the machine",
            ok=of_ideal.median / 2 >= OF_IDEAL,
        ),
        *(
            Result(
                name=f"{size}: {name}, CPU of all processes against one ({one.spread})",
                value=one.median,
                unit="×",
                bar=f"≤ {MOST_CPU} × in process" if name == TWO else "shown",
                ok=name != TWO or one.median <= MOST_CPU,
            )
            for name, one in dearer.items()
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

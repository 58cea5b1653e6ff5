"""The demo from an empty home against a bare script: the cost of the platform in seconds.

`bare_flights.py` has the same source, feature function, model function, epochs and ranks, and nothing else. Both run as
whole processes, imports included, in turn. The demo's stages are printed beside the bare ones.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args
from ml_assets.foundation.checkout import ROOT

MOST_TIMES_BARE = 3.3


def demo(home: Path) -> tuple[float, dict[str, Any]]:
    """Return the wall seconds and the JSON of one demo from an empty home."""
    program = Path(sys.executable).with_name("ml-assets")
    return _timed([str(program), "demo", "--json"], {"ML_ASSETS_HOME": str(home)})


def bare() -> tuple[float, list[dict[str, Any]]]:
    """Return the wall seconds and the JSON of one bare run of one seed."""
    return _timed([sys.executable, str(Path(__file__).with_name("bare_flights.py")), "--quick", "--json"], {})


def _timed(command: list[str], environment: dict[str, str]) -> tuple[float, Any]:
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return time.perf_counter() - start, json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    ours: list[float] = []
    theirs: list[float] = []
    again: list[float] = []
    stages: dict[str, float] = {}
    bare_stages: dict[str, float] = {}
    for _ in range(1 if arguments.quick else 3):
        with tempfile.TemporaryDirectory() as home:
            seconds, facts = demo(Path(home))
            ours.append(seconds)
            stages = facts["stages"]
            again.append(demo(Path(home))[0])
        seconds, results = bare()
        theirs.append(seconds)
        bare_stages = results[-1]["peers"]
    if not arguments.json:
        print(f"demo stages: {stages}\nbare stages: {bare_stages}")
    value, peer = statistics.median(ours), statistics.median(theirs)
    spread = f"spread {max(ours) - min(ours):.0f} s over {len(ours)}"
    results = [
        Result(
            name=f"demo from an empty home ({spread})",
            value=value,
            unit="s",
            peers={"bare script": peer},
            ratio=value / peer,
            bar=f"≤ {MOST_TIMES_BARE:g} × bare",
            ok=value <= MOST_TIMES_BARE * peer,
        ),
        Result(
            name="demo again on the same home",
            value=statistics.median(again),
            unit="s",
            peers={"first time": value},
            ratio=statistics.median(again) / value,
            bar="≤ half of the first time",
            ok=statistics.median(again) <= value / 2,
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

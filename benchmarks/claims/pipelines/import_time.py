"""Load time of the definitions, which every run and every tick pays first: little more than Dagster itself.

Each measurement is a fresh interpreter, ours and the peer in turn. `import dagster` is the peer because no user of
Dagster can pay less. CPU time, because an import hardly waits for anything but the other work on the machine.
"""

import os
import subprocess
import sys
import tempfile

from benchmarks._report import Result, emit, interleave, parse_args, ratio_of
from ml_assets.foundation.checkout import ROOT

MOST_TIMES_DAGSTER = 4.5
"""Most CPU time, as a multiple of `import dagster`: 3.75 to 3.88 times. Half of it declares the pipelines."""


def _interpreter(code: str, home: str) -> None:
    """Run `code` in a new interpreter with an empty home of the platform."""
    environment = {"PATH": "/usr/bin:/bin", "ML_ASSETS_HOME": home, "HOME": home}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT)


def _cpu_of_children() -> float:
    """Return the CPU seconds of all processes that ended so far below this one."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> int:
    """Measure, print, decide."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory() as home:
        timings = interleave(
            {
                "definitions": lambda: _interpreter("import ml_assets.definitions as d; d.defs()", home),
                "import dagster": lambda: _interpreter("import dagster", home),
            },
            rounds=3 if arguments.quick else 5,
            clock=_cpu_of_children,
        )
    ours, dagster = timings["definitions"], timings["import dagster"]
    times = ratio_of(ours.seconds, dagster.seconds)
    result = Result(
        name=f"loading the definitions, CPU time ({times.spread})",
        value=ours.median,
        unit="s",
        peers={"import dagster": dagster.median},
        ratio=times.median,
        bar=f"≤ {MOST_TIMES_DAGSTER:g} × import dagster",
        ok=times.median <= MOST_TIMES_DAGSTER,
    )
    return emit(result, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

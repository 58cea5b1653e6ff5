"""Load time of the definitions, which every run and every tick pays first: little more than Dagster itself.

Each measurement is a fresh interpreter, ours and the peer in turn. `import dagster` is the peer because no user of
Dagster can pay less.
"""

import subprocess
import sys
import tempfile

from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.foundation.checkout import ROOT

MOST_TIMES_DAGSTER = 3


def _interpreter(code: str, home: str) -> None:
    """Run `code` in a new interpreter with an empty home of the platform."""
    environment = {"PATH": "/usr/bin:/bin", "ML_ASSETS_HOME": home, "HOME": home}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT)


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
        )
    ours, dagster = timings["definitions"].median, timings["import dagster"].median
    result = Result(
        name="loading the definitions",
        value=ours,
        unit="s",
        peers={"import dagster": dagster},
        ratio=ours / dagster,
        bar=f"≤ {MOST_TIMES_DAGSTER} × import dagster, median of {timings['definitions'].rounds}",
        ok=ours <= MOST_TIMES_DAGSTER * dagster,
    )
    return emit(result, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

"""Seconds from damage to the next trained step, with local processes: the drills, and the loss of a quarter of 8
workers.

Each drill also compares rows and weights with an undamaged training. A failed drill misses its bar, whatever its
seconds were. From SIGTERM to saved and ended with 1 GB of state: `checkpoint.py`.
"""

import functools
import tempfile
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from ml_assets.extras.drills.drills import DRILLS, Drill, lose_machine, rehearse
from ml_assets.extras.drills.fixture import Fixture

BARS = {"kill-rank": 8.0, "kill-node": 12.0, "kill-quarter": 15.0, "hang": 11.0, "corrupt-checkpoint": 8.0}
_QUARTER = Drill(
    "one of 4 machines is lost, with 2 of 8 workers",
    functools.partial(lose_machine, machines=4, seconds=BARS["kill-quarter"]),
)


def main() -> int:
    """Measure, print, decide."""
    asked = parse_args(__doc__)
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        fixture = Fixture(Path(folder))
        drills = DRILLS | {"kill-quarter": _QUARTER}
        results = [_recovery(name, drills[name], fixture) for name in BARS]
    return emit(results, json=asked.json)


def _recovery(name: str, drill: Drill, fixture: Fixture) -> Result:
    report = rehearse(name, drill, fixture, lambda _: None)
    seconds = next(check.measured for check in report.checks if check.name == "damage to next trained step")
    return Result(
        name=f"{name}: damage to the next trained step",
        value=float(seconds),
        unit="s",
        bar=f"≤ {BARS[name]:g} s, rows and weights as if nothing had happened",
        ok=report.ok and float(seconds) <= BARS[name],
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""Recovery from damage to the next trained step, with local processes: the drills, and the loss of a quarter of 8
workers.

The yardstick of a recovery is the first start of the same training: from its launch to its first trained step, with as
many workers, in the same drill. Each drill also compares rows and weights with an undamaged training. A failed drill
misses its bar, whatever its ratio was. From SIGTERM to saved and ended with 1 GB of state: `checkpoint.py`.
"""

import math
import statistics
import tempfile
import time
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from benchmarks._report import Result, emit, parse_args, ratio_of
from ml_assets.extras.drills.drills import DRILLS, Drill, lose_machine, rehearse
from ml_assets.extras.drills.fault_injector import Timeline
from ml_assets.extras.drills.fixture import Fixture
from resources.job.job import TrainingJob

ROUNDS = 3
DAMAGES = ("kill-rank", "kill-node", "kill-quarter", "hang", "corrupt-checkpoint")
MOST_TIMES_START = 2.0
"""Most time of a recovery, as a multiple of the first start. A recovery starts the same processes, after it has noticed
the loss, ended the other workers and read a checkpoint: 0.8 and 1.1 times in two drills."""
PATIENCE_SECONDS = 120.0
"""Heartbeat timeout of the other drills. By the default of 15 s, a loss of a quarter failed at a load of 37."""
TIMEOUTS = {"hang": 3.0}
"""Seconds until the drill's training takes a silent worker for hung, by its settings. They are no part of the ratio."""
_QUARTER = Drill(
    "one of 4 machines is lost, with 2 of 8 workers",
    partial(lose_machine, machines=4, seconds=math.inf),
)


class PatientFixture(Fixture):
    """Fixture whose training waits longer for a silent worker, because eight of them may share a slow core."""

    @cached_property
    def job(self) -> TrainingJob:
        """The job of the drills."""
        job = super().job
        return replace(job, settings=replace(job.settings, heartbeat_timeout_seconds=PATIENCE_SECONDS))


def main() -> int:
    """Measure, print, decide."""
    asked = parse_args(__doc__)
    rounds = 1 if asked.quick else ROUNDS
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        fixture = PatientFixture(Path(folder))
        _ = fixture.undisturbed  # before the first drill, which would train it within its time
        drills = DRILLS | {"kill-quarter": _QUARTER}
        results = [_recovery(name, drills[name], fixture, rounds) for name in DAMAGES]
    return emit(results, json=asked.json)


def _recovery(name: str, drill: Drill, fixture: Fixture, rounds: int) -> Result:
    """Return the claim about one drill. Its limits in seconds, which are those of `ml-assets drill`, are not judged."""
    timeout = TIMEOUTS.get(name, 0.0)
    recovered: list[float] = []
    started: list[float] = []
    wrong: list[str] = []
    for number in range(rounds):
        launched = time.time()
        report = rehearse(f"{name}-{number}", drill, fixture, lambda _: None)
        timeline = Timeline.of(fixture.folder / f"{name}-{number}")
        seconds = next(
            check.measured for check in report.checks if check.name == "damage to next trained step"
        )
        recovered.append(float(seconds) - timeout)
        started.append(timeline.seconds_to_step(launched, attempt=1))
        wrong += [check.name for check in report.checks if not check.ok and check.unit != "s"]
    times = ratio_of(recovered, started)
    beyond = f", beyond the timeout of {timeout:g} s" if timeout else ""
    return Result(
        name=f"{name}: damage to the next trained step{beyond} ({times.spread})"
        + "".join(f"; WRONG: {one}" for one in wrong),
        value=statistics.median(recovered),
        unit="s",
        peers={"first start": statistics.median(started)},
        ratio=times.median,
        bar=f"≤ {MOST_TIMES_START:g} × the first start, rows and weights as if nothing had happened",
        ok=not wrong and times.median <= MOST_TIMES_START,
    )


if __name__ == "__main__":
    raise SystemExit(main())

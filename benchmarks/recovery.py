"""Seconds from damage to the next trained step, with local processes: the drills, and a quarter of 8 workers lost.

Each drill also compares rows and weights with a training that nothing happened to; one that did not hold falls short
whatever its seconds were. Then the time from SIGTERM to saved and out for 1 GB of weights and optimizer state (0.1 GB
with --quick).
"""

import dataclasses
import functools
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._report import Result, emit, parse_args
from ml_assets.drills.drills import DRILLS, Drill, lose_machine, rehearse
from ml_assets.drills.scene import Scene
from ml_assets.drills.witness import Witness
from resources.launcher.job import TrainingSettings
from resources.launcher.local import LocalLauncher

BARS = {"kill-rank": 8.0, "kill-node": 12.0, "kill-quarter": 15.0, "hang": 11.0, "corrupt-checkpoint": 8.0}
SAVE_BAR = 30.0
_QUARTER = Drill(
    "one of 4 machines is lost, with 2 of 8 workers",
    functools.partial(lose_machine, machines=4, seconds=BARS["kill-quarter"]),
)
_BYTES_A_WEIGHT = 12
"""Of the weight and AdamW's two moments, float32."""


def main() -> int:
    """Measure, print, decide."""
    asked = parse_args(__doc__)
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        scene = Scene(Path(folder))
        drills = DRILLS | {"kill-quarter": _QUARTER}
        results = [_recovery(name, drills[name], scene) for name in BARS]
        results.append(_sigterm(scene, 0.1 if asked.quick else 1.0))
    return emit(results, json=asked.json)


def _recovery(name: str, drill: Drill, scene: Scene) -> Result:
    report = rehearse(name, drill, scene, lambda _: None)
    seconds = next(check.measured for check in report.checks if check.name == "damage to next trained step")
    return Result(
        name=f"{name}: damage to the next trained step",
        value=float(seconds),
        unit="s",
        bar=f"≤ {BARS[name]:g} s, rows and weights as if nothing had happened",
        ok=report.ok and float(seconds) <= BARS[name],
    )


def _sigterm(scene: Scene, gigabytes: float) -> Result:
    """All ranks are asked to leave in the middle of training something large; two more steps end it afterwards."""
    weights = round(gigabytes * 1e9 / _BYTES_A_WEIGHT)
    job = dataclasses.replace(
        scene.job,
        hyperparameters={"pace": 0.0, "ballast": weights},
        settings=TrainingSettings(
            epochs=1, global_batch=240, metric_steps=1, checkpoint_steps=10_000, max_attempts=1
        ),
    )
    witness = Witness(2, lambda seen: seen.end(0, 1, by=signal.SIGTERM), lambda _: None)
    folder = scene.folder / "large"
    folder.mkdir()
    result = witness.run(job, folder, LocalLauncher())
    assert witness.damaged_at is not None
    seconds = next(event.time for event in witness.events if event.kind == "ended") - witness.damaged_at
    saved = next(event.values for event in witness.events if event.kind == "checkpoint")
    return Result(
        name=f"SIGTERM to saved and out, {gigabytes:g} GB of state",
        value=seconds,
        unit="s",
        peers={"of which the save": saved["checkpoint_duration_ms"] / 1000},
        bar=f"≤ {SAVE_BAR:g} s, goes on from that step",
        ok=seconds <= SAVE_BAR and result.attempts == 2 and witness.recoveries[0].steps_lost == 0,
    )


if __name__ == "__main__":
    raise SystemExit(main())

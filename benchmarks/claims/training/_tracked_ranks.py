"""Rank of `tracked_loop.py`: the platform's loop with metrics and checkpoints, and a bare one, in turn.

Rank 0 writes the seconds of each part to `seconds.json`.
"""

import dataclasses
import json
import sys
from pathlib import Path

from benchmarks.claims.training._loop_ranks import bare, in_turn, platform
from ml_assets.model.training.process.group import join_group
from ml_assets.model.training.process.heartbeat import Heartbeat
from resources.job.job import TrainingJob

_FIGURES = 13
"""Metrics of a metric event."""
_ABOVE = 1.3
"""Factor by which to exceed the requested metrics: events come after whole numbers of steps, and parts differ."""


def main(job_file: str, folder: str, steps: str, rounds: str, per_second: str) -> None:
    """Measure parts of `steps` steps: ours with one checkpoint per part, and `per_second` metrics a second."""
    job = TrainingJob.from_json(Path(job_file).read_text())
    with join_group(job.settings) as group, Heartbeat(group.local_rank) as heartbeat:
        hand_written = bare(job, Path(folder) / "bare", group, int(steps))
        rate = int(steps) / hand_written()
        settings = dataclasses.replace(
            job.settings,
            log_every_steps=max(1, group.from_first(int(rate * _FIGURES / _ABOVE / float(per_second)))),
            checkpoint_every_steps=int(steps) // 2 + 1,
        )
        told = dataclasses.replace(job, settings=settings)
        tracked = platform(told, Path(folder) / "tracked", group, heartbeat, int(steps))
        tracked()
        seconds = in_turn(tracked, hand_written, int(rounds))
        if group.is_first:
            (Path(folder) / "seconds.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Launcher of trials that can read no holdout: whoever read it would fail."""

from pathlib import Path
from typing import Any

from resources.job.job import TrainingJob, TrainingResult


class WithoutHoldout:
    """The real launcher, after the shards and the index of the holdout were deleted."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    def run(self, job: TrainingJob, *arguments: Any, **named: Any) -> TrainingResult:
        for file in Path(job.snapshot).glob("holdout*"):
            file.unlink(missing_ok=True)  # two trials run at once
        return self._launcher.run(job, *arguments, **named)

"""Protocol of a launcher: run one job somewhere, report as it goes, own its attempts."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.resource_profile import ResourceProfile


class TrainingLauncher(Protocol):
    """Runs jobs. A finished job of the same fingerprint is returned without running anything."""

    def run(
        self,
        job: TrainingJob,
        folder: Path,
        on_event: Callable[[TrainingEvent], None],
        on_log: Callable[[str], None],
        profile: ResourceProfile | None = None,
        run_id: str = "",
    ) -> TrainingResult:
        """Train `job` in its fingerprint's `folder` until it is done.

        `profile` says what the workers are given where they run; processes of this machine share the machine.
        `run_id` names the run that waits for it: workers outlive their launcher until that run has ended.

        Raises one of `resources.job.errors`: a final failure is not retried, a preemption does not
        use the budget, anything else is retried from the last good checkpoint within `max_attempts`.
        """
        ...

    def facts(self, profile: ResourceProfile | None = None) -> dict[str, str]:
        """Return where and on what trainings run here, for the record of a run."""
        ...

    def prune(
        self,
        has_ended: Callable[[str], bool] = lambda _: False,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """End trainings whose launcher is gone and will not come back, and name them. Safe at any time from anywhere.

        `has_ended` says of the id of a run that neither it nor a retry of it can come back; without it a run is waited
        for. `on_log` gets a line for what could not be judged or removed.
        """
        ...

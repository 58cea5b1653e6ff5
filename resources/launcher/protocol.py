"""Protocol of a launcher: run one job, report its progress, retry its attempts."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.resource_profile import ResourceProfile


class TrainingLauncher(Protocol):
    """Runs jobs. Returns the result of a finished job of the same fingerprint without running anything."""

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

        `profile`: resources of each pod on a cluster; processes of this machine share the machine. `run_id`: the run
        that waits for the training. If the launcher dies, the workers go on until that run has ended.

        Raises one of `resources.job.errors`. A final failure is not retried. A preemption uses no budget. Any other
        failure is retried from the last good checkpoint, up to `max_attempts` failures; an error of Python that repeats
        at the same place is final.
        """
        ...

    def facts(self, profile: ResourceProfile | None = None) -> dict[str, str]:
        """Return facts for the record of a run: the launcher, and on a cluster the image, namespace and resources."""
        ...

    def prune(
        self,
        has_ended: Callable[[str], bool] = lambda _: False,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """Remove trainings whose launcher is gone and will not come back; return their names. Safe at any time.

        `has_ended(run_id)`: True if neither that run nor a retry can come back. By default no run counts as ended.
        `on_log` gets a line for each object that could not be classified or removed.
        """
        ...

"""Protocol of a launcher: run one job, report its progress, retry its attempts.

Here too, for all launchers: checks of the GPUs that a training needs, before a process starts, and the pause before the
next attempt. Not here: the GPUs of a pod (resource_profile), the device of a rank (the worker asks torch).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from resources.job.errors import BadConfiguration
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import TrainingSettings
from resources.launcher.resource_profile import ResourceProfile

_GPUS = ("nvidia[0-9]*", "dxg", "kfd")
"""Device files of NVIDIA's driver, of NVIDIA's driver under WSL, and of AMD's driver."""


def has_gpus(devices: Path = Path("/dev")) -> bool:
    """True if this machine shows a GPU."""
    return any(next(devices.glob(pattern), None) for pattern in _GPUS)


def refuse_few_gpus(gpus: int, ranks: int, nodes: int) -> None:
    """Raise `BadConfiguration` if this machine has GPUs, but fewer than the `ranks` on each of the `nodes` machines."""
    if not 0 < gpus < ranks:
        return
    has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    share = f"{ranks * nodes} / {nodes} machines = {ranks}" if nodes > 1 else str(ranks)
    raise BadConfiguration(
        f"this machine has {has} for {share} workers, and a worker on the CPU would slow down the workers on GPUs: set "
        f"training.workers to {gpus * nodes}, or training.device to cpu to use no GPU at all"
    )


def refuse_without_gpus(settings: TrainingSettings, *, has_gpus: bool, where: str) -> None:
    """Raise `BadConfiguration` if `settings` need GPUs and there are none. `where`: clause for the message."""
    if settings.precision == "fp16" and not has_gpus:
        raise BadConfiguration(
            f"precision fp16 needs a GPU for each of the {settings.workers} workers, and {where}. Use bf16, which CPUs "
            "support too, or fp32"
        )


LONGEST_SECONDS = 300.0
_DOUBLINGS = 9
"""Doublings of the pause until it exceeds `LONGEST_SECONDS`."""


def pause_after(fruitless: int) -> float:
    """Return the pause in seconds after `fruitless` consecutive attempts that were preempted before their first step.

    Such attempts use no budget: any attempt may be preempted as it starts. But if one after the other is (a machine
    short of memory, pods of a higher priority), an immediate retry does not help. No pause after the first attempt,
    1 s after the second, then twice as long each time, at most 300 s.
    """
    return min(2.0 ** min(fruitless - 2, _DOUBLINGS), LONGEST_SECONDS) if fruitless > 1 else 0.0


def in_words(pause: float) -> str:
    """Return a clause on the pause for a log line; empty without a pause."""
    return f" in {pause:g} s: each of the last attempts ended before its first step" if pause else ""


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

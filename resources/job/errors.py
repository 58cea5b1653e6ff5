"""Failures of a training, as types whose message says what happened and what to do.

A worker raises the final ones itself and ends with their exit code; the launcher raises them again from it.
"""

from typing import ClassVar

from resources.job.job import ExitCode


class TrainingFailed(Exception):
    """Base. `final` tells whether another attempt of the same job can help."""

    final: ClassVar[bool] = False
    exit_code: ClassVar[ExitCode | None] = None
    """Exit code of a worker that raised this; None for what only a launcher raises."""


class BadConfiguration(TrainingFailed):
    """Settings the worker refuses (exit 64)."""

    final = True
    exit_code = ExitCode.BAD_CONFIGURATION


class Diverged(TrainingFailed):
    """The loss or a gradient was not finite (exit 65); the last valid checkpoint is kept."""

    final = True
    exit_code = ExitCode.DIVERGED


class InputChanged(TrainingFailed):
    """A shard is missing or its digest differs from the manifest (exit 66)."""

    final = True
    exit_code = ExitCode.INPUT_CHANGED


class Preempted(TrainingFailed):
    """SIGTERM came and a checkpoint was saved (exit 75); going on costs nothing of the budget."""

    exit_code = ExitCode.PREEMPTED


class StorageFailed(TrainingFailed):
    """A checkpoint, or what belongs to it, could not be stored: a full disk, an object store that is away. Those
    stored before are whole."""


class AttemptsExhausted(TrainingFailed):
    """Every attempt of the budget failed; the last exit code and the last log lines are in the message."""


class Cancelled(TrainingFailed):
    """Somebody stopped the run; the workers were ended after a checkpoint."""

    final = True


class OutOfMemory(TrainingFailed):
    """A worker's memory, or that of its GPU, did not hold a step (exit 67), or a pod used more than its limit: the same
    job would end the same way."""

    final = True
    exit_code = ExitCode.OUT_OF_MEMORY


class OutOfDisk(TrainingFailed):
    """A pod wrote more to its disk than its limit and was evicted: the same job would end the same way."""

    final = True


class ImageUnavailable(TrainingFailed):
    """A node could not get the image of the workers."""

    final = True


class Unschedulable(TrainingFailed):
    """No node had room for a pod for as long as the launcher is told to wait."""

    final = True


class PodNotStarted(TrainingFailed):
    """A pod was refused, or its container could not be made: a missing Secret, a quota, a volume, a command."""

    final = True


class DeadlineExceeded(TrainingFailed):
    """The training ran into `resources.deadline_minutes`; its checkpoint is kept."""

    final = True


class ClusterUnavailable(TrainingFailed):
    """The API server did not answer for longer than the launcher's patience. The pods may be training on."""


class ClusterRefused(TrainingFailed):
    """The API server answered that it will not: no permission, no such namespace, an invalid object."""

    final = True


FINAL: dict[int, type[TrainingFailed]] = {
    int(error.exit_code): error
    for error in (BadConfiguration, Diverged, InputChanged, OutOfMemory)
    if error.exit_code is not None
}
"""Exit code → what a worker raised that ended so, and would again."""

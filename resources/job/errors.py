"""Failures of a training, as types. The message says what happened and what to do.

A failure with an `exit_code` comes from a worker, which ends with that code. The launcher raises a final failure again
from the code.
"""

from pathlib import Path
from typing import ClassVar

from resources.disk import is_disk_full, room_in
from resources.job.job import ExitCode


class TrainingFailed(Exception):
    """Base of all failures. `final` is True if another attempt of the same job cannot help."""

    final: ClassVar[bool] = False
    exit_code: ClassVar[ExitCode | None] = None
    """Exit code of a worker that raised this; None for failures without a code of their own."""


class BadConfiguration(TrainingFailed):
    """The worker refuses the settings (exit 64)."""

    final = True
    exit_code = ExitCode.BAD_CONFIGURATION


class Diverged(TrainingFailed):
    """The loss or a gradient was not finite (exit 65). The last valid checkpoint is kept."""

    final = True
    exit_code = ExitCode.DIVERGED


class InputChanged(TrainingFailed):
    """A shard is missing or its digest differs from the manifest, or a worker has other code than the job names (exit
    66)."""

    final = True
    exit_code = ExitCode.INPUT_CHANGED


class Preempted(TrainingFailed):
    """The worker received SIGTERM and saved a checkpoint (exit 75). The next attempt resumes and uses no budget."""

    exit_code = ExitCode.PREEMPTED


class StorageFailed(TrainingFailed):
    """A checkpoint or one of its files could not be stored: the disk is full, or the object store is away. Earlier
    checkpoints are complete."""


def storage_failed(error: OSError, what: str, folder: Path) -> StorageFailed:
    """Return the error to raise if `what` could not be written to `folder`."""
    why = f"the disk is full, {room_in(folder)}" if is_disk_full(error) else str(error)
    return StorageFailed(
        f"{what} could not be written to {folder}: {why}. Free space there, lower keep_checkpoints, or give the "
        "workers a larger disk; earlier checkpoints are complete, and the next attempt resumes from the newest"
    )


class CheckpointGone(TrainingFailed):
    """A training that should begin with a checkpoint of another training finds none: it was deleted, or never made."""

    final = True


class CheckpointUnusable(TrainingFailed):
    """The checkpoint with which a training should begin is damaged, or is being deleted."""

    final = True


class AttemptsExhausted(TrainingFailed):
    """Every attempt of the budget failed. The message holds the last exit code and the last log lines."""


class FailedTwice(TrainingFailed):
    """Two attempts failed at the same place: the same type of error, at the same line of code, after the same step. A
    third one would fail there, too."""

    final = True


class OutOfMemory(TrainingFailed):
    """A step did not fit into a worker's memory or its GPU's (exit 67), or a pod exceeded its memory limit. The same
    job would fail again."""

    final = True
    exit_code = ExitCode.OUT_OF_MEMORY


class UnmeasuredModel(TrainingFailed):
    """A fresh model with the exported weights has another validation loss than the trained model (exit 68). The model
    keeps state outside of its weights."""

    final = True
    exit_code = ExitCode.UNMEASURED


class OutOfDisk(TrainingFailed):
    """A pod exceeded its disk limit and was evicted. The same job would fail again."""

    final = True


class ImageUnavailable(TrainingFailed):
    """A node could not pull the image of the workers."""

    final = True


class Unschedulable(TrainingFailed):
    """No node had room for a pod within the configured wait, or a quota or queue did not admit the training."""

    final = True


class PodNotStarted(TrainingFailed):
    """The cluster refused a pod, or its container could not start: a missing Secret, a policy, a volume, a command."""

    final = True


class DeadlineExceeded(TrainingFailed):
    """An attempt exceeded `resources.deadline_minutes`. Its checkpoint is kept."""

    final = True


class ClusterUnavailable(TrainingFailed):
    """The API server did not answer until the launcher's retries ran out. The pods may still train."""


class ClusterRefused(TrainingFailed):
    """The API server refused a request: no permission, no such namespace, an invalid object."""

    final = True


class ClocksDiffer(TrainingFailed):
    """The clocks of this machine, of the API server and of a node differ by minutes."""

    final = True


class JobSetsMissing(ClusterRefused):
    """The back end is `jobset` or `trainjob`, and the cluster does not know JobSets."""


class TrainJobsMissing(ClusterRefused):
    """The back end is `trainjob`, and the cluster does not know TrainJobs."""


FINAL: dict[int, type[TrainingFailed]] = {
    int(error.exit_code): error
    for error in (BadConfiguration, Diverged, InputChanged, OutOfMemory, UnmeasuredModel)
    if error.exit_code is not None
}
"""Exit code → final failure that the worker raised."""

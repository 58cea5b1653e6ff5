"""How a training fails, as types whose message says what happened and what to do."""


class TrainingFailed(Exception):
    """Base. `final` tells whether another attempt of the same job can help."""

    final = False


class BadConfiguration(TrainingFailed):
    """Settings the worker refuses (exit 64)."""

    final = True


class Diverged(TrainingFailed):
    """The loss or a gradient was not finite (exit 65); the last valid checkpoint is kept."""

    final = True


class InputChanged(TrainingFailed):
    """A shard is missing or its digest differs from the manifest (exit 66)."""

    final = True


class AttemptsExhausted(TrainingFailed):
    """Every attempt of the budget failed; the last exit code and the last log lines are in the message."""


class Cancelled(TrainingFailed):
    """Somebody stopped the run; the workers were ended after a checkpoint."""

    final = True

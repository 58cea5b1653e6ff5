"""Errors of a context. Those of its parts, such as `NotPromotable`, pass through."""


class ContextError(Exception):
    """A context cannot do what was asked. The message has the remedy."""


class NotFound(ContextError):
    """Something was asked for that does not exist. The message lists what does, or the nearest name."""


class ReadOnly(ContextError):
    """A context that was opened to read was asked to write. The message has the call that opens it to write."""


class HomeRefused(ContextError):
    """A setting is illegal, or the home or Dagster's storage cannot be used. The message has the remedy."""


class LaunchRefused(ContextError):
    """A launch names something that cannot be launched so. The message has the launch to use."""


class RunFailed(ContextError):
    """A run ended with an error. The message has the step and its error."""


class PredictionRefused(ContextError):
    """The rows of a partition that comes, or what they look back at, are not known. The message has the remedy."""

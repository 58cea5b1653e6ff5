"""Errors of sources. Each message says what is wrong, where, and what helps; none contains a credential."""


class SourceRefused(Exception):
    """A source cannot return what was asked for, and another try would not help."""


class SourceAway(SourceRefused, ConnectionError):
    """A source did not answer, after retries. A later try may succeed."""


class PartitionOpen(SourceRefused):
    """A partition is not over, or its source may still get rows of it."""


class VariableMissing(SourceRefused):
    """The environment variable that a section names is not set."""


class ColumnsChanged(SourceRefused):
    """The columns of a source are not the contract's: some were added, removed, or have another type."""

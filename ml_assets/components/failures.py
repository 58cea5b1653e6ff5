"""Refusals a person and a sensor can both read: the sentence for the one, the metadata for the other."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from ml_assets.components.pages import table_of
from ml_assets.tables.refusal import BuildRefused, InputsRefused
from resources.artifacts import ArtifactsUnavailable
from resources.job.errors import ClusterUnavailable
from resources.lake import LakeBusy, LakeUnavailable
from resources.ledger import LedgerBusy, LedgerUnavailable
from resources.mlflow_client import TrackerUnavailable

TRANSIENT = (
    LakeBusy,
    LakeUnavailable,
    LedgerBusy,
    LedgerUnavailable,
    TrackerUnavailable,
    ArtifactsUnavailable,
    ClusterUnavailable,
    ConnectionError,
    TimeoutError,
)
"""Errors that may be gone at the next attempt: Dagster's retry policy covers these alone."""

RETRY_TRANSIENT = dg.RetryPolicy(
    max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""Retry policy of every step. Final failures say `allow_retries=False` and are not repeated."""

OUT_OF_REACH = (*TRANSIENT, OSError)
"""Errors of a source that may answer at the next attempt: those of HTTP clients and files are `OSError`s."""

MISSING = "ml_assets/missing"
"""Metadata of a refusal: JSON, table id → partition keys that are not there yet."""


def _failure_of(error: BuildRefused) -> dg.Failure:
    """Return the step's final failure, with what the failed-upstream sensor and the page read of it."""
    if not isinstance(error, InputsRefused):
        return dg.Failure(str(error), allow_retries=False)
    metadata = {
        MISSING: dg.MetadataValue.json(error.missing),
        "refused": table_of([{"what": what, "why": why} for what, why in error.refused.items()]),
    }
    return dg.Failure(str(error), metadata=metadata, allow_retries=False)


def missing_in(metadata: Mapping[str, Any]) -> dict[str, list[str]]:
    """The missing partitions a failure names; empty for any other failure."""
    value = metadata.get(MISSING)
    return value.data if isinstance(value, dg.JsonMetadataValue) and isinstance(value.data, dict) else {}


class Terminated(dg.DagsterError, DagsterExecutionInterruptedError):
    """Somebody ended the step from outside. As a `DagsterError` it is not repeated: an interruption alone is tried
    again where a step has a retry policy, though the run was terminated."""


@contextmanager
def final_unless_transient() -> Iterator[None]:
    """Around a step's body: only `TRANSIENT` errors are left to the retry policy; any other is final at once.

    A step that somebody terminated stays terminated, also where ending it failed on the way.
    """
    try:
        yield
    except (Exception, *_INTERRUPTIONS) as error:  # a step's outermost edge: whatever it was, say it
        if _was_interrupted(error):
            raise Terminated("the step was ended from outside") from error
        if isinstance(error, (dg.Failure, *TRANSIENT)):
            raise
        if isinstance(error, BuildRefused):
            raise _failure_of(error) from error
        raise dg.Failure(f"{type(error).__name__}: {error}", allow_retries=False) from error


_INTERRUPTIONS = (DagsterExecutionInterruptedError, KeyboardInterrupt)


def _was_interrupted(error: BaseException | None) -> bool:
    """True if `error` is an interruption, or came up while one was handled."""
    while error is not None and not isinstance(error, _INTERRUPTIONS):
        error = error.__context__
    return error is not None

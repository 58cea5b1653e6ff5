"""Refusals a person and a sensor can both read: the sentence for the one, the metadata for the other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from ml_assets.components.pages import ON_A_PAGE, table_of
from resources.artifacts import ArtifactsUnavailable
from resources.job.errors import ClusterUnavailable
from resources.lake import LakeBusy, LakeUnavailable
from resources.ledger import LedgerBusy, LedgerUnavailable
from resources.mlflow_client import TrackerUnavailable
from resources.words import name_some

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


def inputs_refused(
    who: str, refused: Mapping[str, str], missing: Mapping[str, Sequence[str]], more: str = ""
) -> dg.Failure:
    """`who` cannot be built because of unusable inputs.

    `refused`: what cannot be used → why, for people. `missing`: those that could simply be built, which the
    failed-upstream sensor then asks for. `more`: the end of the message.
    """
    named = "; ".join(f"{what} ({why})" for what, why in list(refused.items())[:5])
    others = f"; and {len(refused) - 5} more" if len(refused) > 5 else ""
    wanted = "; ".join(f"{table}: {name_some(keys, ON_A_PAGE)}" for table, keys in missing.items())
    help_missing = (
        f" Missing partitions are requested by the sensor build_missing_upstream: {wanted}." if wanted else ""
    )
    return dg.Failure(
        f"{who} refuses to build on unusable inputs: {named}{others}.{help_missing} A rejected partition needs its "
        f"source mended, or a person's word: ml-assets accept TABLE PARTITION --reason '…'.{more}",
        metadata={
            MISSING: dg.MetadataValue.json({table: list(keys) for table, keys in missing.items()}),
            "refused": table_of([{"what": what, "why": why} for what, why in refused.items()]),
        },
        allow_retries=False,
    )


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
        raise dg.Failure(f"{type(error).__name__}: {error}", allow_retries=False) from error


_INTERRUPTIONS = (DagsterExecutionInterruptedError, KeyboardInterrupt)


def _was_interrupted(error: BaseException | None) -> bool:
    """True if `error` is an interruption, or came up while one was handled."""
    while error is not None and not isinstance(error, _INTERRUPTIONS):
        error = error.__context__
    return error is not None

"""Failures of steps, with a sentence for people and metadata for sensors."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from ml_assets.components.pages import table_of
from ml_assets.dagster_host.drained_runs import end_if_resumed, is_canceled
from ml_assets.data.tables.guard import BuildRefused, InputsRefused
from resources.artifacts import ArtifactsUnavailable
from resources.database_errors import StudiesUnavailable
from resources.disk import full_disk_text
from resources.extras import missing_extra
from resources.job.errors import ClusterUnavailable
from resources.lake import LakeBusy, LakeUnavailable
from resources.ledger import LedgerBusy, LedgerUnavailable
from resources.memory import explained
from resources.online import OnlineStoreUnavailable
from resources.pool import PoolUnavailable, TaskFailed
from resources.settings import Settings
from resources.tracking.mlflow_client import TrackerUnavailable

TRANSIENT = (
    LakeBusy,
    LakeUnavailable,
    LedgerBusy,
    LedgerUnavailable,
    TrackerUnavailable,
    StudiesUnavailable,
    OnlineStoreUnavailable,
    ArtifactsUnavailable,
    ClusterUnavailable,
    PoolUnavailable,
    ConnectionError,
    TimeoutError,
)
"""Errors that may be gone at the next try. Dagster's retry policy covers only these."""

RETRY_TRANSIENT = dg.RetryPolicy(
    max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""Retry policy of every step. Final failures have `allow_retries=False`, so Dagster does not repeat the step."""

OUT_OF_REACH = (*TRANSIENT, OSError)
"""Errors of a source that may work at the next try. Errors of HTTP clients and files are `OSError`s."""

MISSING = "ml_assets/missing"
"""Metadata of a refusal: JSON, table id → missing partition keys."""

REFUSED = "refused"
"""Metadata of a refusal: each refused partition with its reason."""


def _failure_of(error: BuildRefused) -> dg.Failure:
    """Return the step's final failure, with metadata for the failed-upstream sensor and for the page."""
    if not isinstance(error, InputsRefused):
        return dg.Failure(str(error), allow_retries=False)
    metadata = {
        MISSING: dg.MetadataValue.json(error.missing),
        REFUSED: table_of([{"what": what, "why": why} for what, why in error.refused.items()]),
    }
    return dg.Failure(str(error), metadata=metadata, allow_retries=False)


def missing_in(metadata: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the missing partitions that a failure names; empty for any other failure."""
    value = metadata.get(MISSING)
    return value.data if isinstance(value, dg.JsonMetadataValue) and isinstance(value.data, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Meaning of an interruption for the run that this process executes."""

    is_asked: Callable[[], bool]
    """True from the first Ctrl-C on."""
    is_cancel: Callable[[], bool]
    """True if an interruption cancels the run; False if it ends this process alone, and the run comes back."""
    tell: Callable[[], None]
    """Called once the interrupted step has released what it holds: tell Dagster that the run is being canceled, or end
    the process. Without it, Dagster counts an interrupted run as failed."""


_stops: list[Stop] = []


@contextmanager
def stopping_by(stop: Stop) -> Iterator[None]:
    """Let each step of the block end by `stop`, also a step that begins after Ctrl-C.

    Dagster repeats a step, by its retry policy, that was interrupted outside of its body.
    """
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)


@contextmanager
def executed(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Let the steps of a run that Dagster launched be canceled by its row alone, not by any SIGTERM."""
    stop = Stop(
        is_asked=lambda: False,
        is_cancel=partial(is_canceled, instance, run_id),
        tell=partial(end_if_resumed, instance, run_id),
    )
    with stopping_by(stop):
        yield


def comes_back(error: BaseException) -> bool:
    """True if `error` interrupted a run that is not being canceled: what it waits for may go on without it.

    False outside of a run that Dagster launched, or a command did.
    """
    return was_interrupted(error) and bool(_stops) and not any(stop.is_cancel() for stop in _stops)


class Terminated(dg.DagsterError, DagsterExecutionInterruptedError):
    """Somebody terminated the step.

    Dagster does not repeat a step after a `DagsterError`. After a plain interruption it would apply the step's retry
    policy, although the run was terminated.
    """


@contextmanager
def final_unless_transient(settings: Settings) -> Iterator[None]:
    """Leave only `TRANSIENT` errors of a step's body to the retry policy; make any other error final at once.

    A step that somebody terminated stays terminated, even if the termination itself raised an error. If memory or a
    disk of the home ran out, the failure says how much there is.
    """
    try:
        if any(stop.is_asked() for stop in _stops):
            raise KeyboardInterrupt
        yield
    except (Exception, *_INTERRUPTIONS) as error:  # outermost edge of a step: report every error
        if was_interrupted(error):
            for stop in _stops:
                stop.tell()
            raise Terminated("the step was stopped from outside") from error
        if isinstance(error, (dg.Failure, *TRANSIENT)):
            raise
        if isinstance(error, TaskFailed) and isinstance(error.__cause__, TRANSIENT):
            raise
        if isinstance(error, BuildRefused):
            raise _failure_of(error) from error
        said = f"{error}" if isinstance(error, TaskFailed) else f"{type(error).__name__}: {error}"
        why = missing_extra(error) or full_disk_text(error, settings.folders) or explained(said, error)
        raise dg.Failure(why, allow_retries=False) from error


_INTERRUPTIONS = (DagsterExecutionInterruptedError, KeyboardInterrupt)


def was_interrupted(error: BaseException | None) -> bool:
    """True if `error` is an interruption, or was raised while an interruption was handled."""
    while error is not None and not isinstance(error, _INTERRUPTIONS):
        error = error.__context__
    return error is not None

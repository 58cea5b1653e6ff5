"""MLflow itself: its client, with calls that take plain values, and its errors as ours.

Import this late, through `open_client` and `reaching` (`resources.tracking.mlflow_client`): it imports mlflow, which
takes two to three seconds and reads switches that `mlflow_client` sets before.
"""

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import requests
import sqlalchemy.exc
from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from resources.addresses import Address
from resources.tracking.mlflow_client import TrackerError, TrackerRaced, TrackerRefused, TrackerUnavailable
from resources.tracking.sink import Point

_MOST_POINTS = 1000
"""Limit of MLflow: metrics per call."""
_MOST_PARAMS = 100
_DIGEST_LENGTH = 36
"""Limit of MLflow: characters of a dataset's digest. A tag holds the whole digest."""
_REFUSALS = {
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_ALREADY_EXISTS",
    "INVALID_STATE",
    "PERMISSION_DENIED",
}
_RACE_WORDS = ("IntegrityError", "UniqueViolation", "Model Version creation error")


class PlainClient(MlflowClient):
    """MLflow's client, with calls that take names and values in place of MLflow's entities."""

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Store points in order. MLflow keeps a point with the same step, time and value only once."""
        for start in range(0, len(points), _MOST_POINTS):
            some = points[start : start + _MOST_POINTS]
            self.log_batch(run_id, [Metric(one.name, one.value, one.time_ms, one.step) for one in some])

    def log_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags in one call. Replace tags of the same name."""
        self.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Add parameters. MLflow refuses to change the value of a parameter."""
        stored = [Param(name, value) for name, value in params.items()]
        for start in range(0, len(stored), _MOST_PARAMS):
            self.log_batch(run_id, params=stored[start : start + _MOST_PARAMS])

    def log_dataset(self, run_id: str, name: str, digest: str) -> None:
        """Show a dataset in MLflow's column of datasets."""
        self.log_inputs(run_id, [DatasetInput(Dataset(name, digest[:_DIGEST_LENGTH], "lake", digest))])


@contextmanager
def translating(uri: str) -> Generator[None]:
    """Translate errors of mlflow inside the block into `TrackerRefused` or `TrackerUnavailable`."""
    try:
        yield
    except MlflowException as error:
        refuses = error.error_code in _REFUSALS
        raise _translated(uri, error, refuses=refuses) from _cause(uri, error)
    except (requests.RequestException, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise _translated(uri, error, refuses=False) from _cause(uri, error)


def _translated(uri: str, error: Exception, *, refuses: bool) -> TrackerError:
    place = Address(uri)
    first_line = place.hide_in(str(error).partition("\n")[0])
    if refuses:
        return TrackerRefused(f"MLflow at {place} refused: {first_line}")
    if any(word in str(error) for word in _RACE_WORDS):
        return TrackerRaced(
            f"MLflow at {place}: another process wrote the same object at the same time: {first_line}"
        )
    return TrackerUnavailable(
        f"MLflow at {place} did not answer: {first_line}. Check the address (ML_ASSETS_TRACKING_URI) and "
        "that the server runs; then run the same command again, it continues where it stopped"
    )


def _cause(uri: str, error: Exception) -> Exception | None:
    """Return the cause for the traceback; None if the original error could show a password."""
    return None if Address(uri).has_credentials else error

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
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from resources.addresses import Address
from resources.tracking.mlflow_client import TrackerError, TrackerRaced, TrackerRefused, TrackerUnavailable
from resources.tracking.sink import Point

_MOST_POINTS = 1000
"""Limit of MLflow: metrics per call."""
_MOST_PARAMS = 100
_MOST_PLACES = 1_000
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

    def __init__(self, tracking_uri: str, registry_uri: str) -> None:
        super().__init__(tracking_uri=tracking_uri, registry_uri=registry_uri)
        self._address = tracking_uri
        self._places: dict[str, ArtifactRepository] = {}
        """Run → place of its files, which MLflow never changes."""

    def files_of(self, run_id: str) -> dict[str, int]:
        """Return path → bytes of the files of a run, those of its folders, too.

        MLflow's own `list_artifacts` reads the run twice for each folder, to find the place of its files.
        """
        if (place := self._places.get(run_id)) is None:
            address = self.get_run(run_id).info.artifact_uri or ""
            place = self._places[run_id] = get_artifact_repository(address, self._address)
            while len(self._places) > _MOST_PLACES:
                del self._places[next(iter(self._places))]
        found: dict[str, int] = {}
        folders: list[str | None] = [None]
        while folders:
            for one in place.list_artifacts(folders.pop()):
                if one.is_dir:
                    folders.append(one.path)
                else:
                    found[one.path] = int(one.file_size or 0)
        return dict(sorted(found.items()))

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
        "that the server runs, by ml-assets doctor tracker guard; then run the same command again, it continues "
        "where it stopped"
    )


def _cause(uri: str, error: Exception) -> Exception | None:
    """Return the cause for the traceback; None if the original error could show a password."""
    return None if Address(uri).has_credentials else error

"""Client of MLflow: imported late, without its messages, with typed errors.

Here: the import of mlflow (two to three seconds, so only inside functions), its process-wide switches and the
translation of its errors. Not here: logging (`tracker`) and registering (`ml_assets.model.release.registry`).
"""

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from resources.addresses import Address
from resources.files import make_whole

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

REQUEST_SECONDS = 10
"""Timeout of a request, in seconds."""
_SWITCHES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # By default mlflow retries a dead server for minutes. We keep undelivered points in the spool instead.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
}
_REFUSALS = {
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_ALREADY_EXISTS",
    "INVALID_STATE",
    "PERMISSION_DENIED",
}

_SQLITE = "sqlite:///"
_RACES = 4
_RACE_WORDS = ("IntegrityError", "UniqueViolation", "Model Version creation error")
Answer = TypeVar("Answer")


class TrackerError(Exception):
    """Base of all failures of the tracker."""


class TrackerUnavailable(TrackerError):
    """The tracker could not be reached or did not answer. The same call may succeed later."""


class TrackerRaced(TrackerUnavailable):
    """Another process wrote the same key at the same moment. A second try succeeds, because the key exists then."""


class TrackerRefused(TrackerError):
    """The tracker refused the request: the named object does not exist, or the value is not allowed."""


def embedded_file(uri: str) -> Path | None:
    """Return the SQLite file of an embedded MLflow; None for a server."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


@cache
def open_client(uri: str) -> "MlflowClient":
    """Return the client of an MLflow server or database. Creates the tables of a new SQLite database (1 to 6 s).

    The client also serves the model registry, which has the same address. Raise `TrackerUnavailable`.
    """
    with reaching(uri):
        from mlflow.tracking import MlflowClient

        if (path := embedded_file(uri)) is not None:
            make_whole(path, lambda making: _make_tables(f"{_SQLITE}{making}"))
            # SQLite stores this mode in the file. In WAL mode readers, such as the UI, do not block writers.
            with closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA journal_mode=WAL")
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _make_tables(uri: str) -> None:
    """Create MLflow's tables, which takes 1 to 6 s."""
    from mlflow.tracking import MlflowClient

    MlflowClient(tracking_uri=uri, registry_uri=uri)


def page_of(uri: str, place: str) -> str | None:
    """Return the address of a page of an MLflow server, without a password.

    `place` is `runs/<id>` or `models/<name>/versions/<number>`. None for a database, which has no pages of its own.
    """
    return f"{str(Address(uri)).rstrip('/')}/#/{place}" if uri.startswith(("http://", "https://")) else None


@contextmanager
def reaching(uri: str) -> Generator[None]:
    """Translate errors of mlflow inside the block into `TrackerRefused` or `TrackerUnavailable`."""
    for name, value in _SWITCHES.items():
        os.environ.setdefault(name, value)  # before the import below: mlflow reads some of them then
    import requests
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        refuses = error.error_code in _REFUSALS
        raise _translated(uri, error, refuses=refuses) from _cause(uri, error)
    except (requests.RequestException, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise _translated(uri, error, refuses=False) from _cause(uri, error)


def write(uri: str, call: Callable[[], Answer]) -> Answer:
    """Run `call` inside `reaching`, and again if it lost a race; return its result.

    MLflow sets a tag by a read and an insert. If two processes set the same new tag, one of them fails. Not
    `resources.retry`: a lost race is over at once, so tries count here and not seconds.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(TrackerRaced),
        stop=stop_after_attempt(1 + _RACES),
        wait=wait_random(0.01, 0.05),
        reraise=True,
    )
    return retrying(reaching(uri)(call))


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

"""Opening MLflow: late, quietly, and with its failures as two types.

Here: the import of mlflow (two to three seconds, so only inside functions), its process-wide switches and the
translation of its errors. Not here: what is logged (`tracker`) and registered (`ml_assets.release.registry`).
"""

import os
import random
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from resources.addresses import Address
from resources.sqlite_file import make_whole

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

REQUEST_SECONDS = 10
"""Seconds that a request waits for a server that does not answer."""
_SWITCHES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The default retries a dead server for minutes; here what cannot be delivered is spooled instead.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
}
_REFUSALS = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE"}

_SQLITE = "sqlite:///"
_RACES = 4
_RACE_WORDS = ("IntegrityError", "UniqueViolation", "Model Version creation error")
Answer = TypeVar("Answer")


class TrackerError(Exception):
    """Base of every failure of the tracker."""


class TrackerUnavailable(TrackerError):
    """The tracker could not be reached or did not answer; the same call may succeed later."""


class TrackerRaced(TrackerUnavailable):
    """Another process wrote the same at the same moment; the second try finds it written."""


class TrackerRefused(TrackerError):
    """The tracker answered that it will not: what was named does not exist or is not allowed."""


@cache
def open_client(uri: str) -> "MlflowClient":
    """The client of an MLflow server or database; a new SQLite database gets its tables (one to six seconds).

    Also for the model registry, which lives at the same address. Raises `TrackerUnavailable`.
    """
    with reaching(uri):
        from mlflow.tracking import MlflowClient

        if uri.startswith(_SQLITE):
            path = Path(uri.removeprefix(_SQLITE))
            make_whole(path, lambda making: _make_tables(f"{_SQLITE}{making}"))
            # Written once into the file: from then on readers, such as the UI, do not stop writers.
            with closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA journal_mode=WAL")
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _make_tables(uri: str) -> None:
    """Make MLflow's tables, which takes one to six seconds."""
    from mlflow.tracking import MlflowClient

    MlflowClient(tracking_uri=uri, registry_uri=uri)


def page_of(uri: str, place: str) -> str | None:
    """Address of a page of an MLflow server (`runs/<id>`, `models/<name>/versions/<number>`), without a password.

    None for a database: it has pages only while somebody serves them.
    """
    return f"{str(Address(uri)).rstrip('/')}/#/{place}" if uri.startswith(("http://", "https://")) else None


@contextmanager
def reaching(uri: str) -> Generator[None]:
    """Turn whatever mlflow raises inside into `TrackerRefused` or `TrackerUnavailable`."""
    for name, value in _SWITCHES.items():
        os.environ.setdefault(name, value)  # mlflow reads some when it is imported, which is next
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
    """`call` inside `reaching`, again where it lost a race: MLflow sets a tag by reading and then inserting,
    so that of two processes that set the same new tag one fails."""
    for _ in range(_RACES):
        try:
            with reaching(uri):
                return call()
        except TrackerRaced:
            time.sleep(random.uniform(0.01, 0.05))
    with reaching(uri):
        return call()


def _translated(uri: str, error: Exception, *, refuses: bool) -> TrackerError:
    place = Address(uri)
    first_line = place.hide_in(str(error).partition("\n")[0])
    if refuses:
        return TrackerRefused(f"MLflow at {place} refused: {first_line}")
    if any(word in str(error) for word in _RACE_WORDS):
        return TrackerRaced(f"MLflow at {place}: another process wrote the same at once: {first_line}")
    return TrackerUnavailable(
        f"MLflow at {place} did not answer: {first_line}. Check the address (ML_ASSETS_TRACKING_URI) and "
        "that the server runs; then the same command goes on where it stopped"
    )


def _cause(uri: str, error: Exception) -> Exception | None:
    """Return the cause that a traceback shows: none where the original would show a password."""
    return None if Address(uri).has_credentials else error

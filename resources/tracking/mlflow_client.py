"""Way to MLflow: imported at its first use, without its messages, with typed errors.

Here: the process-wide switches of mlflow, and its import, which takes two to three seconds. Not here: its client
(`mlflow_api`), logging (`tracker`) and registering (`ml_assets.model.release.registry`).
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
    from resources.tracking.mlflow_api import PlainClient

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
_SQLITE = "sqlite:///"
_RACES = 4
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
def open_client(uri: str) -> "PlainClient":
    """Return the client of an MLflow server or database. Creates the tables of a new SQLite database (1 to 6 s).

    The client also serves the model registry, which has the same address. Raise `TrackerUnavailable`.
    """
    with reaching(uri):
        from resources.tracking.mlflow_api import PlainClient

        def make_tables(path: Path) -> None:  # takes 1 to 6 s
            PlainClient(tracking_uri=f"{_SQLITE}{path}", registry_uri=f"{_SQLITE}{path}")

        if (path := embedded_file(uri)) is not None:
            make_whole(path, make_tables)
            # SQLite stores this mode in the file. In WAL mode readers, such as the UI, do not block writers.
            with closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA journal_mode=WAL")
        return PlainClient(tracking_uri=uri, registry_uri=uri)


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
    from resources.tracking.mlflow_api import translating

    with translating(uri):
        yield


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

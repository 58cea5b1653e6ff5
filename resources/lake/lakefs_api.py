"""Calls to one lakeFS repository: timeouts, retries, and the errors that the server's answers become.

Here: opening the client, deciding which failures are retried, and the types of errors. Not here: the requests
(`lakefs.py`, `lakefs_listing.py`, `lakefs_setup.py`) and the bytes of objects (`lakefs_content.py`).

A retry may repeat a call that succeeded, if its answer was lost. So callers treat "exists already", "no changes" and
"not there" as success.
"""

import importlib
import json
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import urllib3
from urllib3.exceptions import HTTPError

from resources.addresses import Address
from resources.lake import (
    LakeBusy,
    LakeError,
    LakeRefused,
    LakeUnavailable,
    NameRefused,
    RepositoryMissing,
)
from resources.retry import patiently

CONNECTIONS = 16
"""Open connections to the server. At least the number of threads that use it at once."""
_CONNECTING = 5.0
"""Timeout of connecting, in seconds."""
_PAUSES = (0.05, 2.0)
"""Pause between tries, in seconds: upper bound of the first pause, and of every pause."""
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
T = TypeVar("T")


class Refusal(LakeError):
    """An error answer of the server. The caller turns it into an error that names the branch or path."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"lakeFS answered {status}: {message}")
        self.status = status
        self.message = message

    @property
    def changes_nothing(self) -> bool:
        """True if there was nothing to commit or to merge."""
        return self.status == 400 and "no changes" in self.message

    @property
    def protects(self) -> bool:
        """True if the branch takes merges only."""
        return self.status == 403 and ("protected branch" in self.message or "default branch" in self.message)


class LakeFSApi:
    """One repository of one server. Safe for any number of threads, and after a fork."""

    def __init__(
        self,
        url: str,
        repository: str,
        access_key_id: str,
        secret_access_key: str,
        *,
        timeout: float = 60.0,
        patience: float = 30.0,
    ) -> None:
        """Prepare calls to the server at `url`, `http(s)://host:port`. Sends no request yet.

        A call fails after `timeout` seconds of silence. A call that fails for a passing reason is retried for
        `patience` seconds.
        """
        if not _REPOSITORY.fullmatch(repository):
            raise NameRefused(
                f"{repository!r} cannot name a lakeFS repository: 3 to 63 lower-case letters, digits and -, and no "
                "- in front. Set ML_ASSETS_ENVIRONMENT."
            )
        self.url = url.rstrip("/")
        self.address = Address(self.url)
        self.repository = repository
        self.timeout = timeout
        self._patience = patience
        self._keys = (access_key_id, secret_access_key)
        self._opening = threading.Lock()
        self._opened: tuple[int, Any] | None = None

    def __repr__(self) -> str:
        return f"LakeFSApi({str(self.address)!r}, {self.repository!r})"

    def ask(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """Call one operation of the client on this repository; return the answer as the client's models.

        `section` and `operation` are the client's names. Raises `Refusal`, which the caller translates, `LakeBusy`
        or `LakeUnavailable` when retries have run out, `LakeRefused` and `RepositoryMissing`.
        """
        return self.patiently(lambda: self.ask_once(section, operation, *arguments, **options))

    def ask_plainly(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """Do as `ask`, but return plain JSON. Building the client's models takes 0.15 ms for every object."""

        def attempt() -> Any:
            # Read within the retried call: the server may stop in the middle of its answer.
            answer = self.ask_once(section, operation, *arguments, _preload_content=False, **options)
            return json.loads(answer.data)

        return self.patiently(attempt)

    def ask_once(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """Do as `ask`, without retries. For a step of an operation that the caller retries as a whole."""
        return self._call(section, operation, self.repository, *arguments, **options)

    def ask_server(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """Do as `ask`, for operations that are not on a repository."""
        return self.patiently(lambda: self._call(section, operation, *arguments, **options))

    def model(self, name: str, /, **fields: object) -> Any:
        """Return a value of the client's type `name`, for a request."""
        return getattr(_module("models"), name)(**fields)

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`; retry while it raises `LakeBusy` or `LakeUnavailable`."""
        first, longest = _PAUSES
        return patiently(
            attempt,
            lambda error: isinstance(error, LakeBusy | LakeUnavailable),
            lambda _: self._patience,
            first_pause=first,
            longest_pause=longest,
        )

    def headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request sent without the client."""
        return dict(urllib3.make_headers(basic_auth=":".join(self._keys)))

    def limits(self) -> tuple[float, float]:
        """Return the timeouts of every request in seconds: for connecting, and for silence."""
        return min(_CONNECTING, self.timeout), self.timeout

    def unreachable(self, url: str, error: Exception) -> LakeUnavailable:
        """Return the error for a missing answer. It names the server only: a presigned address holds a credential."""
        return LakeUnavailable(
            f"{Address(url).server} did not answer ({type(error).__name__}): check that it runs and that this "
            "machine reaches it."
        )

    def refused(self, status: int, body: bytes | str | None) -> LakeError:
        """Return the error for an answer with an error status."""
        message = _message(body)
        where = f"lakeFS at {self.address}"
        if status in (429, 503) or "try again later" in message:
            return LakeBusy(
                f"{where} was busy for {self._patience:g} s ({status}: {message}). Repeat the operation; if this "
                "continues, let fewer runs publish at once."
            )
        if status >= 500 or (status == 401 and not self._reads_its_database()):
            return LakeUnavailable(
                f"{where} failed ({status}: {message}). It may be starting, or its database or its storage "
                "may be unavailable or full: see its log, then repeat the operation."
            )
        refusal = Refusal(status, message)
        if status in (401, 403) and not refusal.protects:
            return LakeRefused(
                f"{where} denied access ({status}: {message}). Set ML_ASSETS_LAKE_ACCESS_KEY_ID and "
                f"ML_ASSETS_LAKE_SECRET_ACCESS_KEY to keys that may use the repository {self.repository!r}."
            )
        if status == 404 and "repository not found" in message:
            return RepositoryMissing(
                f"{where} has no repository {self.repository!r}. Create it with ml-assets lake init, "
                "or choose another with ML_ASSETS_ENVIRONMENT."
            )
        return refusal

    def _reads_its_database(self) -> bool:
        """True if the server reaches its database. Without it, the server answers 401 to the right keys."""
        connect, silence = self.limits()
        try:
            answer = urllib3.request(
                "GET",
                # This request needs no keys, and the server answers it from its database.
                f"{self.url}/api/v1/setup_lakefs",
                timeout=urllib3.Timeout(connect=connect, read=silence),
                retries=False,
            )
        except HTTPError:
            return False
        return answer.status == 200

    def _call(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        with self._translated():
            call = getattr(getattr(self._client(), section), operation)
            return call(*arguments, _request_timeout=self.limits(), **options)

    @contextmanager
    def _translated(self) -> Generator[None, None, None]:
        """Translate the client's errors into errors of the lake."""
        try:
            yield
        except _module("exceptions").ApiException as error:
            raise self.refused(error.status, error.body) from None
        except (HTTPError, OSError) as error:
            raise self.unreachable(self.url, error) from None

    def _client(self) -> Any:
        # A forked process needs its own connections: two processes would read each other's answers.
        with self._opening:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = (os.getpid(), self._open())
            return self._opened[1]

    def _open(self) -> Any:
        configuration = _module("configuration").Configuration(
            host=f"{self.url}/api/v1", username=self._keys[0], password=self._keys[1]
        )
        # We retry ourselves: the library would retry without pauses, and hide which call failed.
        configuration.retries = False
        configuration.connection_pool_maxsize = CONNECTIONS
        return _module("client").LakeFSClient(configuration)


def _module(name: str) -> Any:
    """Return a module of the client, which has no annotations and takes 0.2 s to import."""
    return importlib.import_module(f"lakefs_client.{name}")


def _message(body: bytes | str | None) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        answer = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:300] or "no reason given"
    said = cast(dict[str, object], answer).get("message") if isinstance(answer, dict) else None
    return text[:300] if said is None else str(said)

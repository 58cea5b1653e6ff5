"""Calls to one lakeFS repository: time limits, patience, and what the server's answers mean.

Here: the client library and its loading, which failures are worth another try, and the types they become.
Not here: what is asked (`lakefs.py`, `lakefs_listing.py`, `lakefs_setup.py`) and the bytes of objects
(`lakefs_content.py`).

Every call may be repeated after it had succeeded unseen (the answer was lost with the server), so callers
treat "exists already", "no changes" and "not there" as the outcome they wanted.
"""

import importlib
import json
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from resources.addresses import Address
from resources.lake.errors import (
    LakeBusy,
    LakeError,
    LakeRefused,
    LakeUnavailable,
    NameRefused,
    RepositoryMissing,
)
from resources.retry import patiently

CONNECTIONS = 16
"""Kept open to the server, at least as many as threads that use it at once."""
_CONNECTING = 5.0
"""Seconds until a connection has to stand."""
_PAUSES = (0.05, 2.0)
"""Bounds of the pause between tries, in seconds: of the first one, and of any."""
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
T = TypeVar("T")


class Refusal(LakeError):
    """An answer that only the caller can put into words: it knows which branch or path was meant."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"lakeFS answered {status}: {message}")
        self.status = status
        self.message = message

    @property
    def changes_nothing(self) -> bool:
        """There was nothing to commit or to merge."""
        return self.status == 400 and "no changes" in self.message

    @property
    def protects(self) -> bool:
        """The branch takes merges only."""
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
        library: str = "lakefs_client",
        timeout: float = 60.0,
        patience: float = 30.0,
    ) -> None:
        """`url` is `http(s)://host:port`. Nothing is asked yet.

        The server may be silent for `timeout` seconds within one call; calls that fail for a passing reason
        are repeated for `patience` seconds. `library` is `lakefs_client`, or `lakefs_sdk` where that is
        installed: they differ in their names only.
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
        self._library = library
        self._opening = threading.Lock()
        self._opened: tuple[int, Any] | None = None

    def __repr__(self) -> str:
        return f"LakeFSApi({str(self.address)!r}, {self.repository!r})"

    def ask(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """One operation by the client's own names, on this repository: its answer as the client's models.

        Raises `Refusal` where the caller has to say what it means; `LakeBusy` and `LakeUnavailable` when
        patience has ended; `LakeRefused`, `RepositoryMissing`.
        """
        return self.patiently(lambda: self.ask_once(section, operation, *arguments, **options))

    def ask_plainly(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """`ask`, with the answer as plain JSON: building the client's models takes 0.15 ms for every object."""
        options["_preload_content"] = False
        name, field = (operation, "data")
        if self._library != "lakefs_client":
            name, field = (f"{operation}_with_http_info", "raw_data")

        def attempt() -> Any:
            # Reading is a part of the call: the server may end in the middle of its answer.
            with self._translated():
                answer = getattr(getattr(self._client(), section), name)(
                    self.repository, *arguments, _request_timeout=self.limits(), **options
                )
                return json.loads(getattr(answer, field))

        return self.patiently(attempt)

    def ask_once(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """`ask` without patience, for a part of something that is repeated as a whole."""
        return self._call(section, operation, self.repository, *arguments, **options)

    def ask_server(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        """`ask` for the operations that are not on a repository."""
        return self.patiently(lambda: self._call(section, operation, *arguments, **options))

    def model(self, name: str, /, **fields: object) -> Any:
        """A value of the client's own types, to be sent."""
        return getattr(self._module("models"), name)(**fields)

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns; try again while it raises `LakeBusy` or `LakeUnavailable`."""
        first, longest = _PAUSES
        return patiently(
            attempt,
            lambda error: isinstance(error, LakeBusy | LakeUnavailable),
            lambda _: self._patience,
            first_pause=first,
            longest_pause=longest,
        )

    def headers(self) -> dict[str, str]:
        """Return the headers with which the server accepts a request without the client."""
        import urllib3

        return dict(urllib3.make_headers(basic_auth=":".join(self._keys)))

    def limits(self) -> tuple[float, float]:
        """Seconds for connecting, and of silence, of every request."""
        return min(_CONNECTING, self.timeout), self.timeout

    def unreachable(self, url: str, error: Exception) -> LakeUnavailable:
        """No answer. Names the server only: the rest of a presigned address is a credential."""
        return LakeUnavailable(
            f"{Address(url).server} did not answer ({type(error).__name__}): is it running, and does this machine "
            "reach it?"
        )

    def refused(self, status: int, body: bytes | str | None) -> LakeError:
        """Return the error for an answer that is not a success."""
        message = _message(body)
        where = f"lakeFS at {self.address}"
        if status in (429, 503) or "try again later" in message:
            return LakeBusy(
                f"{where} is busy ({status}: {message}) and stayed so for {self._patience:g} s. Repeat the "
                "operation; if this lasts, let fewer runs publish at once."
            )
        if status >= 500 or (status == 401 and not self._reads_its_database()):
            return LakeUnavailable(
                f"{where} failed ({status}: {message}). It may be starting, or its database or its storage "
                "may be away or full: see its log, then repeat."
            )
        refusal = Refusal(status, message)
        if status in (401, 403) and not refusal.protects:
            return LakeRefused(
                f"{where} refuses ({status}: {message}). Set ML_ASSETS_LAKE_ACCESS_KEY_ID and "
                f"ML_ASSETS_LAKE_SECRET_ACCESS_KEY to keys that may use the repository {self.repository!r}."
            )
        if status == 404 and "repository not found" in message:
            return RepositoryMissing(
                f"{where} has no repository {self.repository!r}. ml-assets lake init makes it; "
                "ML_ASSETS_ENVIRONMENT chooses another."
            )
        return refusal

    def _reads_its_database(self) -> bool:
        """True if the server can look keys up: without its database it calls the right keys wrong."""
        import urllib3

        connect, silence = self.limits()
        try:
            answer = urllib3.request(
                "GET",
                # Needs no keys, and is answered from the database.
                f"{self.url}/api/v1/setup_lakefs",
                timeout=urllib3.Timeout(connect=connect, read=silence),
                retries=False,
            )
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200

    def _call(self, section: str, operation: str, *arguments: object, **options: object) -> Any:
        with self._translated():
            call = getattr(getattr(self._client(), section), operation)
            return call(*arguments, _request_timeout=self.limits(), **options)

    @contextmanager
    def _translated(self) -> Generator[None, None, None]:
        """The client's errors as ours."""
        from urllib3.exceptions import HTTPError

        try:
            yield
        except self._module("exceptions").ApiException as error:
            raise self.refused(error.status, error.body) from None
        except (HTTPError, OSError) as error:
            raise self.unreachable(self.url, error) from None

    def _client(self) -> Any:
        # Connections must not be carried over a fork: two processes would read each other's answers.
        with self._opening:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = (os.getpid(), self._open())
            return self._opened[1]

    def _open(self) -> Any:
        configuration = self._module("configuration").Configuration(
            host=f"{self.url}/api/v1", username=self._keys[0], password=self._keys[1]
        )
        # Repeating is ours: the library would repeat without pauses, and hide which call it was.
        configuration.retries = False
        configuration.connection_pool_maxsize = CONNECTIONS
        return self._module("client").LakeFSClient(configuration)

    def _module(self, name: str) -> Any:
        try:
            return importlib.import_module(f"{self._library}.{name}")
        except ModuleNotFoundError as error:
            raise LakeError(
                f"{self._library} is not installed. Install it (lakefs-sdk>=1.50,<1.87: later ones are not open "
                "source), or leave ML_ASSETS_LAKE_LIBRARY out."
            ) from error


def texts(model: Any, field: str) -> dict[str, str]:
    """A field of texts by name of one of the client's values; empty where the server left it out."""
    value: Any = getattr(model, field, None) or {}
    return dict(value.to_dict() if hasattr(value, "to_dict") else value)


def _message(body: bytes | str | None) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        answer = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:300] or "no reason given"
    said = cast(dict[str, object], answer).get("message") if isinstance(answer, dict) else None
    return text[:300] if said is None else str(said)

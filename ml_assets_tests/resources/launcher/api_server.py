"""A small real API server: HTTP, documents, labels and versions as Kubernetes 1.34 answers; nothing runs in it.

Tests put documents there and say which requests are refused, lost or answered late. Not here: what launchers do.
"""

import json
import re
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ml_assets_tests.resources.launcher.http_server import QuietHandler, serving_in_threads

NAMESPACE = "team"
_PATH = re.compile(rf"/namespaces/{NAMESPACE}/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?P<part>/log|/status)?$")
_NO_ANSWER = 0
_WATCH_SECONDS = 1.0
"""Seconds after which a watch ends without a change; with one, it ends then."""

Document = dict[str, Any]


@dataclass
class Trouble:
    """Fault of the next requests of a method whose path matches."""

    method: str
    path: str
    status: int
    """Answered instead; 0: the request is done and its answer lost."""
    times: int
    message: str


@dataclass
class ApiServer:
    """State of the server, for a test to fill and to read."""

    url: str = ""
    token: str = "first"
    """Other tokens are answered with 401."""
    on_job: Callable[["ApiServer", Document], None] = lambda _, __: None
    """Plays the controllers: called with each Job, JobSet or TrainJob that was made."""
    on_done: Callable[[str], None] = lambda _: None
    """Called with each request that was done, as in `requests`, before it is answered."""
    objects: dict[tuple[str, str], Document] = field(default_factory=dict[tuple[str, str], Document])
    """Objects by kind, as in a path (`jobs`), and by name."""
    troubles: list[Trouble] = field(default_factory=list[Trouble])
    requests: list[str] = field(default_factory=list[str])
    """Method, kind and name of every request that was done."""
    lock: threading.Condition = field(default_factory=threading.Condition)
    """Notified at each change of an object."""
    watched: list[str] = field(default_factory=list[str])
    """Kind of every watch that was opened."""
    changes: list[tuple[str, Document]] = field(default_factory=list[tuple[str, Document]])
    """Kind and document at each change of an object, for watches. A removed object comes in its last state."""
    _versions: Iterable[int] = field(default_factory=count)

    def put(self, kind: str, document: Document) -> Document:
        """Store it as a new version, with a uid if it has none."""
        with self.lock:
            number = str(next(iter(self._versions)))
            meta = {
                "uid": f"uid-{number}",
                "creationTimestamp": "2026-11-22T12:00:00Z",
                **document["metadata"],
                "resourceVersion": number,
            }
            made = self.objects[kind, meta["name"]] = {**document, "metadata": meta}
            self.changes.append((kind, made))
            self.lock.notify_all()
            return made

    def remove(self, kind: str, name: str) -> None:
        """Remove an object."""
        with self.lock:
            self.changes.append((kind, self.objects.pop((kind, name))))
            self.lock.notify_all()

    def trouble(
        self, method: str, path: str, status: int = _NO_ANSWER, times: int = 1, message: str = ""
    ) -> None:
        """Answer the next `times` requests so: with `status` and `message`, or not at all after they were done."""
        self.troubles.append(Trouble(method, path, status, times, message or f"trouble {status}"))

    def names(self, kind: str) -> list[str]:
        """Return the names of the objects of this kind."""
        with self.lock:
            return sorted(name for of, name in self.objects if of == kind)

    def kubeconfig(self, folder: Path) -> Path:
        """A file with the server's address and its token of now."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return path

    def take_trouble(self, method: str, path: str) -> Trouble | None:
        with self.lock:
            for one in self.troubles:
                if one.times and one.method == method and re.search(one.path, path):
                    one.times -= 1
                    return one
            return None

    def do(self, method: str, target: str, body: Document) -> tuple[int, Document | str]:
        """Status and answer."""
        parts = urlsplit(target)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        found = _PATH.search(parts.path)
        if found is None:
            return _status(404, f"the server could not find {parts.path}")
        kind, name = found["kind"], found["name"] or body.get("metadata", {}).get("name", "")
        with self.lock:
            if found["part"] == "/log":
                return 200, ""
            if "watch" in asked:
                self.watched.append(kind)
                earlier = len(self.changes)
                self.lock.wait(_WATCH_SECONDS)
                told = [one for of, one in self.changes[earlier:] if of == kind]
                chosen = [one for one in told if _matches(one, asked.get("labelSelector", ""))]
                return 200, "".join(json.dumps({"type": "MODIFIED", "object": one}) + "\n" for one in chosen)
            if method == "POST":
                answer = self._create(kind, name, body)
            elif found["name"]:
                answer = self._one(method, kind, name, body)
            else:
                answer = self._many(method, kind, asked.get("labelSelector", ""), int(asked.get("limit", 0)))
            self.requests.append(f"{method} {kind} {name}".rstrip())
            self.on_done(self.requests[-1])
            return answer

    def _create(self, kind: str, name: str, body: Document) -> tuple[int, Document]:
        if (kind, name) in self.objects:
            return _status(409, f'{kind} "{name}" already exists')
        made = self.put(kind, body)
        if kind in ("jobs", "jobsets", "trainjobs"):
            self.on_job(self, made)
        return 201, self.objects[kind, name]

    def _many(self, method: str, kind: str, selector: str, limit: int) -> tuple[int, Document]:
        found = [one for (of, _), one in self.objects.items() if of == kind and _matches(one, selector)]
        if method == "DELETE":
            for one in found[: limit or None]:
                self.remove(kind, one["metadata"]["name"])
        meta = {"continue": "the-rest"} if limit and len(found) > limit else {}
        return 200, {"kind": "List", "metadata": meta, "items": found[: limit or None]}

    def _one(self, method: str, kind: str, name: str, body: Document) -> tuple[int, Document]:
        there = self.objects.get((kind, name))
        if there is None:
            return _status(404, f'{kind} "{name}" not found')
        version = there["metadata"]["resourceVersion"]
        sent = body.get("metadata", body.get("preconditions", {})).get("resourceVersion", version)
        if sent != version:
            return _status(409, f'{kind} "{name}": the object has been modified')
        if method == "PUT":
            return 200, self.put(kind, body)
        if method == "PATCH":
            return 200, self.put(kind, _merged(there, body))
        if method == "DELETE":
            self.remove(kind, name)
        return 200, there


def _merged(document: Document, change: Document) -> Document:
    """Return the document after a JSON merge patch without null."""
    found = {
        name: _merged(document.get(name, {}), value)
        for name, value in change.items()
        if isinstance(value, dict)
    }
    return {**document, **change, **found}


def _matches(document: Document, selector: str) -> bool:
    labels = document["metadata"].get("labels", {})
    for term in filter(None, selector.split(",")):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


def _status(code: int, message: str) -> tuple[int, Document]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


@contextmanager
def serving() -> Generator[ApiServer]:
    """A server on a free port, for the block."""
    state = ApiServer()

    class ApiHandler(QuietHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            trouble = state.take_trouble(self.command, self.path)
            if self.headers.get("Authorization") != f"Bearer {state.token}":
                status, answer = _status(401, "Unauthorized")
            elif trouble is not None and trouble.status != _NO_ANSWER:
                status, answer = _status(trouble.status, trouble.message)
            else:
                status, answer = state.do(self.command, self.path, body)
                if trouble is not None:
                    self.close_connection = True
                    return
            content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    with serving_in_threads(ApiHandler) as state.url:
        yield state

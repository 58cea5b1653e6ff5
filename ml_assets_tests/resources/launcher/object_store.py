"""A small real S3 server for one bucket: objects are put, read, listed and deleted over HTTP; it can be away."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from ml_assets_tests.resources.launcher.http_server import QuietHandler, serving_in_threads

BUCKET = "bucket"
_WHEN, _WHEN_HTTP = "2026-11-22T12:00:00.000Z", "Sun, 22 Nov 2026 12:00:00 GMT"


@dataclass
class ObjectStore:
    """State of the server, for a test to fill and to read."""

    url: str = ""
    is_away: bool = False
    """Answers 503 to everything."""
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    refused: int = 0
    """Requests that came while it was away."""


@contextmanager
def storing() -> Generator[ObjectStore]:
    """A server on a free port, for the block."""
    state = ObjectStore()

    class StoreHandler(QuietHandler):
        def _serve(self) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if state.is_away:
                state.refused += 1
                self._answer(503, _error("SlowDown"))
            elif self.command == "PUT":
                state.objects[key] = body
                self._answer(200, b"", key)
            elif not key:
                self._answer(200, _listing(state.objects, parse_qs(parts.query).get("prefix", [""])[0]))
            elif key not in state.objects:
                self._answer(404, _error("NoSuchKey"))
            else:
                self._answer(200, state.objects[key], key)

        def _answer(self, status: int, content: bytes, key: str = "") -> None:
            self.send_response(status)
            if key:
                self.send_header("ETag", _etag(state.objects[key]))
                self.send_header("Last-Modified", _WHEN_HTTP)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = _serve

    with serving_in_threads(StoreHandler) as state.url:
        yield state


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _listing(objects: dict[str, bytes], prefix: str) -> bytes:
    found = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{_WHEN}</LastModified><ETag>{escape(_etag(content))}</ETag>"
        f"<Size>{len(content)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key, content in sorted(objects.items())
        if key.startswith(prefix)
    )
    return (
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>{found}"
        "</ListBucketResult>"
    ).encode()

"""An S3 that accepts connections and says nothing, as a frozen one does: each operation ends, by name."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from resources.artifacts import ArtifactsUnavailable
from resources.artifacts.s3 import RemoteArtifacts

NOTHING = b"<ListBucketResult></ListBucketResult>"


@dataclass
class SilentS3:
    """A server that lists `reports` as empty, so that a push begins, and is silent otherwise."""

    listener: socket.socket
    methods: set[str] = field(default_factory=set[str])
    """Methods of the requests that got no answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        """Take connections until the listener closes."""
        kept: list[socket.socket] = []  # or they would be closed
        with suppress(OSError):
            while True:
                kept.append(self.listener.accept()[0])
                threading.Thread(target=self._answer, args=(kept[-1],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while request := connection.recv(1 << 16):
                method, place = request.decode(errors="replace").split(" ", 2)[:2]
                if method == "GET" and "reports" in place:
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(NOTHING)}\r\n\r\n"
                    connection.sendall(head.encode() + NOTHING)
                elif method == "HEAD":
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                else:
                    self.methods.add(method)


@pytest.fixture
def silent() -> Iterator[SilentS3]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SilentS3(listener)
        threading.Thread(target=server.serve, daemon=True).start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)


def _list(artifacts: RemoteArtifacts) -> None:
    artifacts.files("others")


def _push(artifacts: RemoteArtifacts) -> None:
    (artifacts.folder("reports") / "file").write_bytes(bytes(1000))
    artifacts.push("reports")


def _create(artifacts: RemoteArtifacts) -> None:
    with artifacts.create("reports", "file") as file:
        file.write(bytes(1000))


@pytest.mark.parametrize(("use", "method"), [(_list, "GET"), (_push, "PUT"), (_create, "PUT")])
def test_every_request_to_a_silent_s3_ends(
    silent: SilentS3,
    use: Callable[[RemoteArtifacts], None],
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upload waits for "100 Continue" before its body, which no timeout of the client covers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr("resources.artifacts.s3.READ_SECONDS", 0.5)
    monkeypatch.setattr("resources.artifacts.s3.CONNECT_SECONDS", 0.5)
    artifacts = RemoteArtifacts("s3://bucket/team", tmp_path, silent.url, patience_seconds=0.1)
    with pytest.raises(ArtifactsUnavailable, match=f"S3 at {silent.url} did not answer"):
        use(artifacts)
    assert silent.methods == {method}

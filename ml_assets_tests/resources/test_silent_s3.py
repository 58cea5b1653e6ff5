"""An S3 that accepts connections and says nothing, as a frozen one does: each operation ends, by name."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from resources.artifacts import ArtifactsUnavailable
from resources.artifacts.s3 import RemoteArtifacts


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that reads the begin of each request, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):  # closed
                while True:
                    kept.append(listener.accept()[0])
                    kept[-1].recv(1 << 10)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


def _list(artifacts: RemoteArtifacts) -> None:
    artifacts.files("reports")


def _push(artifacts: RemoteArtifacts) -> None:
    (artifacts.folder("reports") / "file").write_bytes(bytes(1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "_listing", lambda *_: {})  # pyright: ignore
        artifacts.push("reports")


def _create(artifacts: RemoteArtifacts) -> None:
    with artifacts.create("reports", "file") as file:
        file.write(bytes(1000))


@pytest.mark.parametrize("use", [_list, _push, _create])
def test_every_request_to_a_silent_s3_ends(
    silent: str, use: Callable[[RemoteArtifacts], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload waits for "100 Continue" before its body, which no timeout of the client covers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr("resources.artifacts.s3.READ_SECONDS", 0.5)
    monkeypatch.setattr("resources.artifacts.s3.CONNECT_SECONDS", 0.5)
    artifacts = RemoteArtifacts("s3://bucket/team", tmp_path, silent, patience_seconds=0.1)
    with pytest.raises(ArtifactsUnavailable, match=f"S3 at {silent} did not answer"):
        use(artifacts)

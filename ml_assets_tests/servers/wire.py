"""The wire between a client and a real server, with scissors: bytes pass unchanged until a test cuts them.

It answers nothing by itself. What a test cuts or delays is what a killed, slow or frozen server, a lost packet or
another client at the worst moment would do, at an exact place instead of by luck.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass
class Wire:
    """Forwards `port` on loopback to `target`; `with wire(...)` opens and closes it."""

    target: tuple[str, int]
    listener: socket.socket
    lose: str | None = None
    """The answer to the next request whose first line holds this is cut off after the server gave it."""
    before: tuple[str, Callable[[], None]] | None = None
    """Called once when a request whose first line holds the text is about to reach the server."""
    lost: list[str] = field(default_factory=list[str])
    """Request lines of the requests whose answers were cut off."""
    late_seconds: float = 0.0
    """Delay of each answer."""
    silent_after: int | None = None
    """Number of requests after which no answer passes, although connections stay open."""
    requests: list[str] = field(default_factory=list[str])
    """Request lines of all requests, in their order."""

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}"

    def serve(self) -> None:
        """Serve connections until the listener closes."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.target) as server:
            cut = threading.Event()
            backwards = threading.Thread(target=self._answers, args=(server, client, cut), daemon=True)
            backwards.start()
            self._requests(client, server, cut)
            _end(server)
            backwards.join()

    def _requests(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        while chunk := _receive(client):
            first = chunk.partition(b"\r\n")[0].decode(errors="replace")
            if first.endswith(" HTTP/1.1"):  # otherwise the chunk is a piece of a body
                self.requests.append(first)
            if self.before is not None and self.before[0] in first:
                act, self.before = self.before[1], None
                act()
            if self.lose is not None and self.lose in first:
                self.lost.append(first)
                self.lose = None
                cut.set()
            try:
                server.sendall(chunk)
            except OSError:
                return

    def _answers(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        while chunk := _receive(server):
            if cut.is_set():
                break
            time.sleep(self.late_seconds)
            if self.silent_after is not None and len(self.requests) > self.silent_after:
                continue
            try:
                client.sendall(chunk)
            except OSError:
                break
        _end(client)


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """A wire to the server at `http://host:port`."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Wire((host, int(port)), listener)
        serving = threading.Thread(target=made.serve, daemon=True)
        serving.start()
        yield made
        # Closing alone does not wake a thread that waits for a connection.
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(CHUNK)
    except OSError:
        return b""


def _end(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return

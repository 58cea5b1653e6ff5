"""A proxy of this machine in front of a server: it delays each answer, counts requests, and can fall silent."""

import re
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

_REQUEST = re.compile(rb"^(?:GET|PUT|POST|DELETE|HEAD) (\S+) HTTP/1\.1\r\n", re.MULTILINE)


class SlowProxy:
    """Connections to `port` are passed on to another port. Answers come `seconds` late; requests pass at once."""

    def __init__(self, upstream: int, seconds: float) -> None:
        self._upstream, self._seconds = upstream, seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[str] = []
        """Paths of requests, in their order."""
        self.silent_after: int | None = None
        """Number of requests after which no answer passes."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no connection any more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                for start in (self._pass_requests, self._pass_answers):
                    threading.Thread(target=start, args=(client, server), daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while found := client.recv(1 << 16):
                self.requests += [path.decode() for path in _REQUEST.findall(found)]
                server.sendall(found)
        _shut(server)

    def _pass_answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while found := server.recv(1 << 20):
                time.sleep(self._seconds)
                while self.silent_after is not None and len(self.requests) > self.silent_after:
                    time.sleep(0.1)
                client.sendall(found)
        _shut(client)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def slow_proxy(upstream: int, seconds: float) -> Generator[SlowProxy]:
    """Yield a proxy in front of a port of this machine."""
    proxy = SlowProxy(upstream, seconds)
    try:
        yield proxy
    finally:
        proxy.silent_after = None
        proxy.close()

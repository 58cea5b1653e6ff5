"""An HTTP server in threads of a test's own process, on a free loopback port."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """Handler of HTTP/1.1 requests without a log: failed tests show what they assert."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving_in_threads(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """Serve requests by `handler` for the block; yield the address of the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()

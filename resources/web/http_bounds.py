"""Bounds of every HTTP server of ours, before a request reaches an application or an account is asked for.

A client without an account can open connections and send bytes. Without bounds a few hundred silent connections use up
the files of a process, after which it can neither answer nor read its ledger; a header of 60 MB held up `/health` for
51 s. uvicorn has `limit_concurrency`, which counts requests and not connections, and bounds of headers only in its
slower parser; it has no deadline for a request.

Here: the numbers, the files of the process, and the small server of a metrics page. Not here: uvicorn's protocol
(`bounded_uvicorn`).
"""

import contextlib
import ipaddress
import resource
import socket
import threading
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

BACKLOG = 256
"""Connections that wait to be accepted. A server may accept all of them at once, before it can refuse any."""
RESERVED_FILES = 192
"""Files that connections leave to the ledger, the artifacts, bundles and logs."""
_OPEN_FILES = Path("/proc/self/fd")


@dataclass(frozen=True, kw_only=True)
class HttpBounds:
    """Bounds of one server."""

    connections: int = 1_024
    """Connections at once, open or silent. More are refused with status 503."""
    head_bytes: int = 65_536
    """Request line and headers of a request. Above it: status 431."""
    head_seconds: float = 10.0
    """Time to send them, and from the connection to the first request. After it: status 408."""
    body_rate: float = 1_024.0
    """Bytes a second of a body, over each `body_seconds`: a large upload may take long. Below it: status 408."""
    body_seconds: float = 10.0

    @property
    def of_address(self) -> int:
        """Connections of one network address at once: a quarter, so that no client alone shuts others out."""
        return max(1, self.connections // 4)


def within_files(bounds: HttpBounds) -> HttpBounds:
    """Return the bounds with no more connections than this process may have files, without the reserved ones.

    Raises the soft limit of files as far as that needs and the hard limit allows.
    """
    used = len(list(_OPEN_FILES.iterdir())) if _OPEN_FILES.exists() else 64
    kept = used + RESERVED_FILES + BACKLOG
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = kept + bounds.connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft == resource.RLIM_INFINITY:
        return bounds
    return replace(bounds, connections=max(4, min(bounds.connections, soft - kept)))


@lru_cache(4_096)
def network_of(address: str) -> str:
    """Return the network that counts as one client: the address, or a whole /64 of IPv6, which one machine may have.

    Text that is no address, such as the name of a local socket, stays as it is.
    """
    try:
        one = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if one.version == 4 else str(ipaddress.ip_network((one, 64), strict=False))


USUAL = HttpBounds()
_PAGE = HttpBounds(connections=16)


class BoundedHTTPServer(ThreadingHTTPServer):
    """Server of the standard library for a small page: few connections at once, each open for a short time."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Any, bounds: HttpBounds = _PAGE) -> None:
        self._bounds = bounds
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection of a client that has too many."""
        client = network_of(client_address[0])
        with self._lock:
            has_room = (
                self._open.total() < self._bounds.connections and self._open[client] < self._bounds.of_address
            )
            if has_room:
                self._open[client] += 1
        if not has_room:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could start, which would count this connection as open
            self._left(client)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection. Close it at the deadline, whatever it is doing then."""
        deadline = threading.Timer(self._bounds.head_seconds, _close, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._left(network_of(client_address[0]))

    def _left(self, client: str) -> None:
        with self._lock:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that closes its connection is no error of this process."""


def _close(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has just been closed
        request.shutdown(socket.SHUT_RDWR)

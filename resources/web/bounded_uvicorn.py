"""uvicorn within `HttpBounds`: its options, its protocol, and the way into a server that others start.

Import it where a server starts: it imports uvicorn. Not here: the numbers (`http_bounds`).
"""

import asyncio
import gc
import logging
import sys
from http import HTTPStatus
from typing import Any, ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from resources.web.http_bounds import BACKLOG, USUAL, HttpBounds, network_of, within_files

END_SECONDS = 2
"""Time for requests to end once a server of `serve_until_stopped` stops."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. It costs a timer only while a request is on its way in several parts."""

    bounds: ClassVar[HttpBounds] = USUAL
    _IDLE, _HEAD, _BODY = range(3)

    def connection_made(self, transport: Any) -> None:
        """Give the connection its deadline, or refuse it if there are too many."""
        super().connection_made(transport)
        self._phase = self._IDLE
        self._head_bytes = self._received = self._beside_body = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timed = self._HEAD
        self._refused = False
        others: list[tuple[str, int] | None] = [getattr(one, "client", None) for one in self.connections]
        if len(others) > self.bounds.connections:
            self.refuse(503, "Too many connections are open. Try again later.")
        elif self.client is not None and self._of_client(others) > self.bounds.of_address:
            self.refuse(503, "Too many connections of this address are open. Close some of them.")
        else:
            self._time(self._HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, then see how far the request has come."""
        if self._refused:
            return
        self._received += len(data)
        if self._phase != self._BODY:
            self._head_bytes += len(data)
        self._beside_body += len(data)
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self._phase == self._BODY and self._beside_body > self.bounds.head_bytes:
            self._refuse_head()  # trailers are headers, too, and the parser copies them with each part
        elif self._phase == self._BODY:
            self._time(self._BODY)
        elif self._phase == self._IDLE and self._works():
            self._stop_timer()  # the application works
        elif self._head_bytes > self.bounds.head_bytes:
            self._refuse_head()
        elif self._phase == self._HEAD or self._head_bytes:
            self._time(self._HEAD)  # blank lines before a request are a part of it

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        self._phase = self._HEAD
        self._read = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._read += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._read += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the body, unless the head was too large: then no application sees the request."""
        self._phase, self._beside_body = self._BODY, 0
        if self._refused:
            return
        if self._read > self.bounds.head_bytes:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._beside_body = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; the next one begins with a new head."""
        self._phase = self._IDLE
        self._head_bytes = 0
        if not self._refused:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to the protocol of websockets."""
        self._stop_timer()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP."""
        self.refuse(400, msg)

    def refusal(self, status: int, why: str) -> tuple[bytes, bytes]:
        """Return further headers, each with its line end, and the body of a refusal."""
        return b"content-type: text/plain; charset=utf-8\r\n", why.encode()

    def refuse(self, status: int, why: str) -> None:
        """Close the connection, with an answer unless one is on its way."""
        self._refused = True
        self._stop_timer()
        if not self._works() or not self.cycle.response_started:
            headers, body = self.refusal(status, why)
            line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
            size = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            self.transport.write(line + headers + size + body)
        self.transport.close()

    def _works(self) -> bool:
        """Return True while the application has a request and its answer is not complete."""
        return bool(self.cycle) and not self.cycle.response_complete  # None before the first request

    def _refuse_head(self) -> None:
        self.refuse(431, f"The headers have more than {self.bounds.head_bytes:,} bytes.")

    def _of_client(self, others: list[tuple[str, int] | None]) -> int:
        """Return the number of open connections of this client, with this one."""
        mine = network_of(self.client[0]) if self.client else ""
        return sum(network_of(one[0]) == mine for one in others if one is not None)

    def _time(self, phase: int) -> None:
        """Let the deadline of a phase run, unless it does."""
        if self._timer is not None and self._timed == phase:
            return
        self._stop_timer()
        self._timed = phase
        if phase == self._HEAD:
            self._timer = self.loop.call_later(self.bounds.head_seconds, self._late)
        else:
            self._received = 0
            self._timer = self.loop.call_later(self.bounds.body_seconds, self._look_at_body)

    def _late(self) -> None:
        seconds = self.bounds.head_seconds
        self.refuse(408, f"No complete request line and headers within {seconds:g} s.")

    def _look_at_body(self) -> None:
        self._timer = None
        least = self.bounds.body_rate * self.bounds.body_seconds
        is_ours = (
            self.flow.read_paused or self.cycle.waiting_for_100_continue
        )  # the client waits for the application
        if self._phase == self._BODY and not is_ours and self._received < least:
            self.refuse(408, f"The body arrives with less than {self.bounds.body_rate:g} bytes a second.")
        elif self._phase == self._BODY:
            self._time(self._BODY)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bounded_options(
    bounds: HttpBounds = USUAL, protocol: type[BoundedProtocol] = BoundedProtocol
) -> dict[str, Any]:
    """Return the options of uvicorn that keep a server of this process within bounds."""
    bounded = type(protocol.__name__, (protocol,), {"bounds": within_files(bounds)})
    return {"http": bounded, "backlog": BACKLOG, "server_header": False}


_SWITCH_SECONDS = 0.0005
"""Time that a thread may keep Python's lock while another waits. The default of 5 ms is more than a whole request,
and a request would wait that long several times while a thread works on a long answer."""


def answer_promptly() -> None:
    """Keep threads and the garbage collector of this process from holding up short requests. Call it once, before the
    first request, when all modules and definitions are loaded."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # a full collection over all that is loaded would hold up requests for a tenth of a second


def serve_until_stopped(
    app: ASGIApp,
    host: str,
    port: int,
    protocol: type[BoundedProtocol] = BoundedProtocol,
    **options: Any,
) -> None:
    """Serve `app` until Ctrl-C or SIGTERM, quietly. Requests that do not end within `END_SECONDS` are cut off."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        proxy_headers=False,
        timeout_graceful_shutdown=END_SECONDS,
        **options,
        **bounded_options(USUAL, protocol),
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for what uvicorn logs of a request that the end of the server cut off."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and not str(record.msg).startswith("Cancel %s")


def bound_this_process() -> None:
    """Keep a uvicorn within bounds whose options belong to somebody else, such as MLflow's."""
    bounded = bounded_options()["http"]
    plain = HttpToolsProtocol.__init__

    def init(self: HttpToolsProtocol, *arguments: Any, **named: Any) -> None:
        if type(self) is HttpToolsProtocol:
            self.__class__ = bounded  # before its parser, which keeps the methods that it finds
        plain(self, *arguments, **named)

    HttpToolsProtocol.__init__ = init

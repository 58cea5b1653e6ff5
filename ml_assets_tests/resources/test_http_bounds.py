"""Bounds of HTTP servers, on loopback: silent, slow and large clients keep nobody else from an answer."""

import ast
import asyncio
import http.client
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

import pytest
import uvicorn

from resources.web.bounded_uvicorn import bounded_options
from resources.web.http_bounds import BoundedHTTPServer, HttpBounds, network_of

OTHER = "127.0.0.2"
"""Another address of this machine: another client."""
PATIENCE = 200.0
"""Seconds that a slow machine may need for anything that must happen."""


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the number of bytes in the body."""
    size, more = 0, scope["type"] == "http"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"%08d" % size})


@contextmanager
def _serving(bounds: HttpBounds, app: Any = _app) -> Generator[int]:
    """Serve an application in a thread, and yield its port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    options = bounded_options(bounds) | {"timeout_keep_alive": PATIENCE, "log_config": None}
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", **options))
    server.capture_signals = _no_signals
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def _no_signals() -> Generator[None]:
    yield


def _connected(stack: ExitStack, port: int, source: str = "127.0.0.1") -> socket.socket:
    return stack.enter_context(
        socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(source, 0))
    )


def _status(connection: socket.socket) -> int:
    """Return the status of the next answer; 0 if the connection ends without one."""
    answer = http.client.HTTPResponse(connection)
    try:
        answer.begin()
    except (http.client.BadStatusLine, ConnectionError):
        return 0
    answer.read()
    return answer.status


def _asked(stack: ExitStack, port: int) -> socket.socket:
    """Return a connection with an answer. On a slow machine the first ones may meet a short deadline."""
    while True:
        connection = _connected(stack, port)
        with suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            if _status(connection) == 200:
                return connection


def _ask(port: int, source: str = OTHER) -> int:
    with ExitStack() as stack:
        connection = _connected(stack, port, source)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        return _status(connection)


def test_silent_connections_of_an_address_leave_room_for_others() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(connections=40, head_seconds=PATIENCE)))
        silent = [_connected(stack, port) for _ in range(10)]
        assert [_status(_connected(stack, port)) for _ in range(20)] == [503] * 20
        assert _ask(port) == 200
        silent[0].close()
        while _ask(port, "127.0.0.1") != 200:  # its room is free again
            time.sleep(0.005)


def test_no_more_connections_are_open_than_allowed_in_all() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(connections=4, head_seconds=PATIENCE)))
        for last in range(1, 5):
            _connected(stack, port, f"127.0.1.{last}").sendall(b"GET / HT")
        assert _ask(port) == 503


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET / HTTP/1.1\r\nhost: he", b"\r\n", b"POST / HTTP/1.1\r\ncontent-length: 9\r\nx-slow"],
    ids=["silent", "within-a-header", "blank-lines", "within-a-name"],
)
def test_a_head_that_does_not_come_ends_the_connection(begun: bytes) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(head_seconds=0.3)))
        connection = _connected(stack, port)
        connection.sendall(begun)
        assert _status(connection) == 408


def test_bytes_that_drip_do_not_lengthen_the_time_of_a_head() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(head_seconds=0.5)))
        connection = _connected(stack, port)
        connection.sendall(b"GET / HTTP/1.1\r\nx: ")
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not over.wait(0.05):
                    connection.sendall(b"a")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert _status(connection) in (408, 0)  # 0: its last byte met a closed connection
        finally:
            over.set()
            dripping.join()


def test_the_next_request_of_a_connection_has_its_own_time() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(head_seconds=0.3)))
        connection = _asked(stack, port)
        connection.sendall(b"GET / HT")
        assert _status(connection) == 408


def test_an_idle_connection_is_kept_after_an_answer() -> None:
    """It has the time of `timeout_keep_alive`, not that of a head."""
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(head_seconds=0.2)))
        first, silent = _asked(stack, port), _connected(stack, port)
        assert _status(silent) == 408, "a younger one passed"
        first.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        assert _status(first) == 200


def test_a_body_that_stops_ends_the_connection() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(body_seconds=0.3)))
        connection = _connected(stack, port)
        connection.sendall(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 1000\r\n\r\nbegin")
        assert _status(connection) == 408


def test_a_large_body_may_take_longer_than_its_window() -> None:
    """Artifacts of MLflow are gigabytes. A try counts if this machine paused for no whole window."""
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(body_rate=1.0, body_seconds=0.3)))

        def upload() -> bool:
            connection = _connected(stack, port)
            connection.sendall(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 100\r\n\r\n")
            with suppress(OSError):
                for _ in range(100):
                    connection.sendall(b"a")
                    time.sleep(0.01)
                return _status(connection) == 200
            return False

        _wait_for(upload)


async def _slow_to_read(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.5)
    await _app(scope, receive, send)


@pytest.mark.parametrize("expects", [b"expect: 100-continue\r\n", b""])
def test_a_client_does_not_pay_for_an_application_that_reads_late(expects: bytes) -> None:
    """With `Expect: 100-continue` it sends no body before the application reads; without, its bytes are not taken."""
    head = b"POST / HTTP/1.1\r\nhost: here\r\n" + expects + b"content-length: 400000\r\n\r\n"
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(body_seconds=0.2), app=_slow_to_read))

        def upload() -> bool:
            connection = _connected(stack, port)
            with suppress(OSError):
                if expects:
                    connection.sendall(head)
                    if not connection.recv(1_000).startswith(b"HTTP/1.1 100"):
                        return False
                connection.sendall((b"" if expects else head) + b"a" * 400_000)
                return _status(connection) == 200
            return False

        _wait_for(upload)  # a try counts if this machine paused for no whole window


_CHUNKED = b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: " + b"a" * 60_000_000,
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x-header: value\r\n" * 200_000,
        b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
        _CHUNKED + b"0\r\nx: " + b"a" * 60_000_000,
        _CHUNKED + b"0\r\n" + b"x-trailer: value\r\n" * 200_000,
        _CHUNKED + b"1;x=" + b"a" * 2_000_000,
    ],
    ids=[
        *("a header of 60 MB", "a long path", "many headers", "complete at once"),
        *("a trailer of 60 MB", "many trailers", "a long extension of a chunk"),
    ],
)
def test_a_large_head_is_refused_and_holds_up_nobody(head: bytes) -> None:
    """One header of 60 MB held up `/health` for 51 s: the parser copied what had come so far with each part. A trailer
    behind a body did the same, and many of them stayed in memory."""
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds(head_seconds=PATIENCE)))
        connection = _connected(stack, port)

        def send() -> None:
            with suppress(OSError):  # the server has closed it
                connection.sendall(head)

        sending = threading.Thread(target=send)
        sending.start()
        assert _ask(port) == 200
        assert _status(connection) in (431, 0)  # 0: bytes after the answer reset the connection
        sending.join()


def test_headers_below_the_bound_reach_the_application() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_serving(HttpBounds()))
        connection = _connected(stack, port)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: here\r\nx: " + b"a" * 60_000 + b"\r\n\r\n")
        assert _status(connection) == 200
        body = b"b" * 500_000
        for _ in range(3):
            connection.sendall(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 500000\r\n\r\n" + body)
            assert _status(connection) == 200
        in_chunks = b"".join(b"1;x=y\r\nb\r\n" for _ in range(100_000))
        connection.sendall(_CHUNKED + in_chunks + b"0\r\nx: " + b"a" * 60_000 + b"\r\n\r\n")
        assert _status(connection) == 200


_WITH_FEW_FILES = """
import resource, socket, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (640, 640))
import uvicorn
from resources.web.bounded_uvicorn import bound_this_process, bounded_options

async def app(scope, receive, send):
    held = [open('/proc/self/status') for _ in range(100)]  # as many as a ledger and a log need
    [one.close() for one in held]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})

listening = socket.create_server(("127.0.0.1", 0), backlog=256)
print(listening.getsockname()[1], flush=True)
def factory():  # the application of somebody else's server
    bound_this_process()
    return app

of_others = sys.argv[1] == "theirs"
options = {"factory": True} if of_others else bounded_options()
config = uvicorn.Config(factory if of_others else app, log_config=None, lifespan="off", **options)
uvicorn.Server(config).run([listening])
"""


@pytest.mark.parametrize("options", ["ours", "theirs"])
def test_connections_leave_files_for_the_ledger(options: str) -> None:
    """Without the reserve, 640 silent connections take all files of the process: nobody is answered, no ledger read."""
    program = subprocess.Popen(
        [sys.executable, "-c", _WITH_FEW_FILES, options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        port = int(program.stdout.readline())
        with ExitStack() as stack:
            for number in range(640):
                _connected(stack, port, f"127.0.2.{1 + number % 200}")
            statuses = {_ask(port, f"127.0.3.{number}") for number in range(1, 4)}
        assert statuses <= {503, 0}, "all are open"
        while _ask(port) != 200:
            time.sleep(0.01)
        with ExitStack() as stack:
            connection = _connected(stack, port)
            connection.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n")
            assert _status(connection) == 431
        assert program.poll() is None
    finally:
        program.kill()
        program.wait()


def test_every_server_of_ours_is_within_bounds() -> None:
    """A new one without them would be open again. MLflow's own is bounded by the guard's application."""
    root = Path(__file__).parents[2]
    found: dict[str, list[str]] = {}
    for folder in ("ml_assets", "resources"):
        for file in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                text = ast.unparse(node) if isinstance(node, ast.Call) else ""
                if re.match(
                    r"(uvicorn\.(run|Config)|partial\(uvicorn\.run|\w*HTTPServer|\w*TCPServer)\b", text
                ):
                    found.setdefault(str(file.relative_to(root)), []).append(text)
    assert {Path(one).name for one in found} == {
        "server.py",
        "decide.py",
        "webserver.py",
        "prometheus.py",
        "bounded_uvicorn.py",
    }
    for file, calls in found.items():
        assert all("bounded_options(" in one or one.startswith("BoundedHTTPServer(") for one in calls), file
    guard = (root / "ml_assets/extras/governance/mlflow_guard.py").read_text()
    assert "bound_this_process()" in guard.partition("def create_app")[2]


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def _page(bounds: HttpBounds) -> Generator[int]:
    with BoundedHTTPServer(("127.0.0.1", 0), _Page, bounds) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_metrics_page_closes_slow_clients_and_refuses_many() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(_page(HttpBounds(connections=8, head_seconds=PATIENCE)))
        slow = [_connected(stack, port) for _ in range(2)]
        for one in slow:
            one.sendall(b"GET / HT")
        _wait_for(lambda: _status(_connected(stack, port)) == 0)
        assert _ask(port) == 200
    with ExitStack() as stack:
        port = stack.enter_context(_page(HttpBounds(connections=8, head_seconds=0.3)))
        connection = _connected(stack, port)
        connection.sendall(b"GET / HT")
        assert _status(connection) == 0


def test_a_metrics_page_goes_on_after_threads_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each such connection counted as open for ever: four of one address, and it got no answer any more."""

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with ExitStack() as stack:
        port = stack.enter_context(_page(HttpBounds(connections=4, head_seconds=PATIENCE)))
        with monkeypatch.context() as patch:
            patch.setattr(ThreadingMixIn, "process_request", no_thread)
            for _ in range(4):
                assert _status(_connected(stack, port, OTHER)) == 0
        assert _ask(port, OTHER) == 200


def _wait_for(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("address", "network"),
    [("10.1.2.3", "10.1.2.3"), ("2001:db8::7", "2001:db8::/64"), ("testclient", "testclient"), ("", "")],
)
def test_a_client_is_an_address_or_a_network_of_ipv6(address: str, network: str) -> None:
    assert network_of(address) == network

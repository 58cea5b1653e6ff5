"""Calls to a PostgreSQL that is silent end, whatever state the process or the connection is in.

A stand-in plays the server: it lets clients in, and answers nothing more. Real servers: `servers/test_release_reads`.
"""

import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import psycopg2

from resources.ledger.bounded_connection import BoundedConnection

PARAMETERS = {"client_encoding": "UTF8", "server_version": "15.0", "DateStyle": "ISO, MDY"}


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!I", 4 + len(content)) + content


@contextmanager
def silent_server() -> Iterator[str]:
    """Let one client in, then keep its connection without an answer; yield the connection string."""
    told = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in PARAMETERS.items())
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        over = threading.Event()

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(4096)
                client.sendall(_message(b"R", struct.pack("!I", 0)) + told + _message(b"Z", b"I"))
                over.wait(60)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            port = server.getsockname()[1]
            yield f"host=127.0.0.1 port={port} user=a dbname=a sslmode=disable gssencmode=disable"
        finally:
            over.set()
            thread.join()


@contextmanager
def no_file_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _ends(call: Callable[[], object]) -> bool:
    refused: list[bool] = []

    def run() -> None:
        with suppress(psycopg2.OperationalError):
            call()
            return
        refused.append(True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    return bool(refused)


def test_a_silent_call_ends_also_without_a_file() -> None:
    """The thread that cuts calls had ended with the first cut that failed, and later calls hung for ever."""
    connect = partial(BoundedConnection, answer_seconds=0.2)
    with silent_server() as full, silent_server() as later:
        first, second = connect(full), connect(later)
        with no_file_left():
            assert _ends(lambda: first.cursor().execute("SELECT 1"))
        assert _ends(lambda: second.cursor().execute("SELECT 2"))

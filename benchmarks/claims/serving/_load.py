"""Load for a server over HTTP/1.1: an open loop at a fixed rate, and a closed loop as fast as the server answers."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Load:
    """Answers to a load."""

    seconds: NDArray[np.float64]
    """`[requests]` latency of each answer."""
    numbers: NDArray[np.int64]
    """`[requests]` place of each answer's request among those that are sent in turn."""
    statuses: Counter[int]
    """Status → answers; 0 is a connection that broke."""
    bodies: Counter[bytes]
    """The first 60 bytes of a body → answers."""
    took: float
    """Seconds of the whole load."""


class _Connection(asyncio.Protocol):
    """One kept connection with at most one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._is_lost = False

    def data_received(self, data: bytes) -> None:
        if self._waiting is not None:  # a server may refuse a connection before it asks for anything
            self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((0, b""))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._waiting is not None
        self._waiting.set_result((self._parser.get_status_code(), self._body))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        if self._is_lost:
            return 0, b""
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._waiting = asyncio.get_running_loop().create_future()
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(request)
        return await self._waiting


def open_loop(url: str, bodies_in_turn: Sequence[bytes], *, rate: float, seconds: float) -> Load:
    """Send `rate` requests a second at planned times; a latency counts from the planned time.

    A request never waits for a free connection: another one is opened.
    """
    return open_loop_of(url, [_prepared(url, body) for body in bodies_in_turn], rate=rate, seconds=seconds)


def open_loop_of(url: str, requests: Sequence[bytes], *, rate: float, seconds: float) -> Load:
    """Do as `open_loop` with whole requests of HTTP/1.1, in turn, to the server of `url`."""

    async def run() -> Load:
        loop = asyncio.get_running_loop()
        make = _connecting(url, loop)
        free = [await make() for _ in range(16)]
        latencies: list[float] = []
        numbers: list[int] = []
        statuses: Counter[int] = Counter()
        bodies: Counter[bytes] = Counter()

        async def one(number: int, planned: float) -> None:
            connection = free.pop() if free else await make()
            status, answer = await connection.ask(requests[number % len(requests)])
            latencies.append(time.perf_counter() - planned)
            numbers.append(number % len(requests))
            statuses[status] += 1
            bodies[answer[:60]] += 1
            if status:
                free.append(connection)

        start = time.perf_counter() + 0.1
        tasks: set[asyncio.Task[None]] = set()
        for number in range(int(rate * seconds)):
            planned = start + number / rate
            while (left := planned - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            task = loop.create_task(one(number, planned))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        took = time.perf_counter() - start
        return Load(np.array(latencies), np.array(numbers, np.int64), statuses, bodies, took)

    return asyncio.run(run())


def closed_loop(url: str, body: bytes, *, connections: int, seconds: float) -> Load:
    """Let each connection ask again as soon as it was answered."""

    async def run() -> Load:
        request, make = _prepared(url, body), _connecting(url, asyncio.get_running_loop())
        latencies: list[float] = []
        statuses: Counter[int] = Counter()
        bodies: Counter[bytes] = Counter()
        start = time.perf_counter()

        async def many(connection: _Connection) -> None:
            while (began := time.perf_counter()) < start + seconds:
                status, answer = await connection.ask(request)
                latencies.append(time.perf_counter() - began)
                statuses[status] += 1
                bodies[answer[:60]] += 1
                if not status:
                    return

        await asyncio.gather(*[many(await make()) for _ in range(connections)])
        took = time.perf_counter() - start
        return Load(np.array(latencies), np.zeros(len(latencies), np.int64), statuses, bodies, took)

    return asyncio.run(run())


def _prepared(url: str, body: bytes) -> bytes:
    """Return the bytes of a request."""
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _connecting(url: str, loop: asyncio.AbstractEventLoop) -> Callable[[], Awaitable[_Connection]]:
    """Return the function that opens a connection."""
    parts = urlsplit(url)

    async def make() -> _Connection:
        _, connection = await loop.create_connection(
            _Connection, parts.hostname or "127.0.0.1", parts.port or 80
        )
        return connection

    return make

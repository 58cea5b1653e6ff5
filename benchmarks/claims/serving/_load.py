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

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((0, b""))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._waiting is not None
        self._waiting.set_result((self._parser.get_status_code(), self._body))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
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

    async def run() -> Load:
        loop = asyncio.get_running_loop()
        prepared = [_prepared(url, body, loop) for body in bodies_in_turn]
        requests, make = [request for request, _ in prepared], prepared[0][1]
        free = [await make() for _ in range(16)]
        latencies: list[float] = []
        statuses: Counter[int] = Counter()
        bodies: Counter[bytes] = Counter()

        async def one(number: int, planned: float) -> None:
            connection = free.pop() if free else await make()
            status, answer = await connection.ask(requests[number % len(requests)])
            latencies.append(time.perf_counter() - planned)
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
        return Load(np.array(latencies), statuses, bodies, time.perf_counter() - start)

    return asyncio.run(run())


def closed_loop(url: str, body: bytes, *, connections: int, seconds: float) -> Load:
    """Let each connection ask again as soon as it was answered."""

    async def run() -> Load:
        request, make = _prepared(url, body, asyncio.get_running_loop())
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
        return Load(np.array(latencies), statuses, bodies, time.perf_counter() - start)

    return asyncio.run(run())


def _prepared(
    url: str, body: bytes, loop: asyncio.AbstractEventLoop
) -> tuple[bytes, Callable[[], Awaitable[_Connection]]]:
    """Return the bytes of a request, and the function that opens a connection."""
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    async def make() -> _Connection:
        _, connection = await loop.create_connection(
            _Connection, parts.hostname or "127.0.0.1", parts.port or 80
        )
        return connection

    return head.encode() + body, make

"""Connection to PostgreSQL whose calls end if the server is silent.

A frozen server keeps its connections, and its kernel acknowledges what it receives. So neither timeouts of TCP nor
`statement_timeout`, which the server itself counts, end a call. Here one thread of the process shuts the sockets of
calls that take too long. A timer for each call, which is a thread, too, took half of the CPU time of a short read.
"""

import math
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

import psycopg2
from psycopg2 import extensions


class BoundedConnection(extensions.connection):
    """Connection whose statements, commits and rollbacks each end after some seconds without an answer.

    They raise `psycopg2.OperationalError`, as for a server that closed the connection.
    """

    def __init__(self, dsn: str, *, answer_seconds: float) -> None:
        super().__init__(dsn)
        self.cursor_factory = BoundedCursor
        self._answer_seconds = answer_seconds

    def commit(self) -> None:
        """Commit."""
        with self.bounded():
            super().commit()

    def rollback(self) -> None:
        """Roll back."""
        with self.bounded():
            super().rollback()

    @contextmanager
    def bounded(self) -> Generator[None]:
        """Shut the socket if the block takes too long."""
        if self.closed:
            yield
            return
        call = _Call(self.fileno())
        _WATCH.add(call, time.monotonic() + self._answer_seconds)
        try:
            yield
        except psycopg2.Error as error:
            if call.was_cut:
                raise psycopg2.OperationalError(
                    f"server closed the connection unexpectedly: it did not answer for {self._answer_seconds:g} s"
                ) from error
            raise
        finally:
            _WATCH.remove(call)
            call.end()


class BoundedCursor(extensions.cursor):
    """Cursor of a `BoundedConnection`."""

    def execute(self, query: Any, vars: Any = None) -> None:
        """Run a statement."""
        with cast("BoundedConnection", self.connection).bounded():
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        """Run a statement for each row of `vars_list`, all within the time of one answer."""
        with cast("BoundedConnection", self.connection).bounded():
            super().executemany(query, vars_list)


class _Call:
    """Call in progress over the socket `number`."""

    __slots__ = ("_lock", "_number", "is_over", "was_cut")

    def __init__(self, number: int) -> None:
        self._number, self._lock = number, threading.Lock()
        self.is_over = self.was_cut = False

    def end(self) -> None:
        with self._lock:  # after the call, the number may belong to another file
            self.is_over = True

    def cut(self) -> None:
        with self._lock:
            if self.is_over:
                return
            self.was_cut = True
            # A connection that was lost at this moment ends its call by itself. No copy of the number: a process whose
            # calls all wait may have no file left.
            with suppress(OSError):
                same = socket.socket(fileno=self._number)
                try:
                    same.shutdown(socket.SHUT_RDWR)
                finally:
                    same.detach()


class _Watch:
    """Thread that cuts calls at their deadlines. It starts with the first call, and again in a forked child."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: a fork has neither the thread nor the calls of its parent."""
        self._changed = threading.Condition()
        self._deadlines: dict[_Call, float] = {}
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, call: _Call, deadline: float) -> None:
        """Cut `call` at `deadline`, in seconds of the monotonic clock, unless it is removed before."""
        with self._changed:
            self._deadlines[call] = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger-deadlines", daemon=True)
                self._thread.start()
            elif deadline < self._wakes_at:
                self._changed.notify()

    def remove(self, call: _Call) -> None:
        with self._changed:
            self._deadlines.pop(call, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                # Calls that ended meanwhile wake nobody: a wake-up for each would cost as much as the call.
                self._wakes_at = min(self._deadlines.values(), default=math.inf)
                now = time.monotonic()
                late = [call for call, deadline in self._deadlines.items() if deadline <= now]
                for call in late:
                    del self._deadlines[call]
                if not late:
                    self._changed.wait(None if self._wakes_at == math.inf else self._wakes_at - now)
            for call in late:
                call.cut()


_WATCH = _Watch()
os.register_at_fork(after_in_child=_WATCH.forget)

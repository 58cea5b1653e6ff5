"""Connection to PostgreSQL whose calls end if the server is silent.

A frozen server keeps its connections, and its kernel acknowledges what it receives. So neither timeouts of TCP nor
`statement_timeout`, which the server itself counts, end a call. Here a timer shuts the socket instead.
"""

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
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
        number, lock, over, was_cut = self.fileno(), threading.Lock(), False, False

        def cut() -> None:
            nonlocal was_cut
            with lock:  # after the block, the number may belong to another file
                if not over:
                    was_cut = True
                    with socket.socket(fileno=os.dup(number)) as same:
                        same.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._answer_seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except psycopg2.Error as error:
            if was_cut:
                raise psycopg2.OperationalError(
                    f"server closed the connection unexpectedly: it did not answer for {self._answer_seconds:g} s"
                ) from error
            raise
        finally:
            timer.cancel()
            with lock:
                over = True


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

"""Value that many tasks read, such as a vocabulary of ten million words: it travels once to each worker, as a file."""

import pickle
import uuid
from typing import Any, Generic, TypeVar

from resources.pool.exchange import Exchange

Value = TypeVar("Value")


class Shared(Generic[Value]):
    """A value that can be pickled. In a pickled task stands the name of its file, which a worker reads once.

    The file is sent when the first task leaves this process.
    """

    def __init__(self, value: Value, exchange: Exchange, name: str = "") -> None:
        """`name`: of the file that was sent; empty: it was not."""
        self.value = value
        self._exchange = exchange
        self._name = name

    def __reduce__(self) -> tuple[Any, tuple[Exchange, str]]:
        if not self._name:
            name = f"shared-{uuid.uuid4().hex}"
            with self._exchange.send(name) as file:
                file.write_bytes(pickle.dumps(self.value))
            self._name = name
        return _read, (self._exchange, self._name)


_last: dict[str, Shared[Any]] = {}
"""The value that this worker read last, by its name."""


def _read(exchange: Exchange, name: str) -> Shared[Any]:
    if name not in _last:
        _last.clear()
        with exchange.receive([name]) as (file,):
            _last[name] = Shared(pickle.loads(file.read_bytes()), exchange, name)
    return _last[name]

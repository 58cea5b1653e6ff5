"""Tasks of these tests: a worker imports them from here."""

import importlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from resources.lake import LakeBusy
from resources.pool.shared import Shared


@dataclass(frozen=True, kw_only=True)
class Work:
    """A number to square, and what happens before."""

    number: int
    folder: Path
    """Place for marks of attempts."""
    deaths: int = 0
    """Attempts in which the worker is killed."""
    fault: str = ""
    """Kind of error that the task raises."""
    seconds: float = 0.0


class TwoWordsNeeded(Exception):
    """An error that no pickle brings back, because its `__init__` takes other arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class PortSilent(ConnectionError):
    """The same for an error by whose base a run is tried again."""

    def __init__(self, port: int, *, host: str) -> None:
        super().__init__(f"{host}:{port} does not answer")


def square(work: Work) -> tuple[int, int]:
    """Return the square of the number, and the id of the process."""
    mark = work.folder / f"{work.number}-{os.getpid()}-{time.monotonic_ns()}"
    mark.touch()
    if len(list(work.folder.glob(f"{work.number}-*"))) <= work.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(work.seconds)
    match work.fault:
        case "busy":
            raise LakeBusy("the lake is busy")
        case "words":
            raise TwoWordsNeeded("no", "rows")
        case "vendored":
            sys.path.insert(0, str(work.folder.parent))
            raise importlib.import_module("vendored_client").Down("no answer")
        case "silent":
            raise PortSilent(5432, host="warehouse")
        case "memory":
            held = bytearray(400_000_000)
            raise RuntimeError("no table") from MemoryError(f"beside {len(held)} bytes")
        case "panic":
            from polars.exceptions import PanicException

            raise PanicException("index out of bounds")
        case "exit":
            sys.exit(0)
        case _:
            return work.number**2, os.getpid()


def lock(work: Work) -> object:
    """Return a result that cannot be pickled."""
    return threading.Lock()


def threads(work: Work) -> int:
    """Return the threads of polars."""
    import polars as pl

    return pl.thread_pool_size()


def write(work: Work, result: tuple[int, int]) -> Path:
    """Write the square to a file, as a handover does."""
    path = work.folder / f"result-{work.number}"
    path.write_text(f"{result[0]} {os.getpid()}")
    return path


def read(path: Path) -> tuple[int, int]:
    """Return what `write` wrote, and who wrote it."""
    square, process = path.read_text().split()
    return int(square), int(process)


def word(task: tuple[Shared[list[str]], int]) -> tuple[str, int, int]:
    """Return the first word of a shared value, the process, and the place of the value in its memory."""
    shared, _ = task
    return shared.value[0], os.getpid(), id(shared.value)


def allocator(name: str) -> str:
    """Return how the allocator of polars was told to keep memory in this process."""
    importlib.import_module("polars")
    return os.environ[name]


def squares(count: int, folder: Path, **changes: object) -> dict[str, Work]:
    """Return name → task for the numbers below `count`."""
    return {f"number {one}": Work(number=one, folder=folder, **changes) for one in range(count)}  # pyright: ignore

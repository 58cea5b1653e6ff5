"""Functions that child processes run to publish, for tests of crashes and of concurrency."""

import itertools
import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl

from ml_assets_tests.faults.child_processes import forkserver
from ml_assets_tests.tables.orders_table import OrdersTable, day, keys

RESOURCES = f"{os.sep}resources{os.sep}"


def context() -> ForkServerContext:
    """Return a fork server that imported everything and ran nothing: its children start fast and inherit no threads."""
    return forkserver("pandera.polars", "ml_assets.data.validation.check", __name__)


def publish_days(folder: Path, start: int, count: int, run: str, factor: float) -> None:
    """Publish days one by one, then all of them once more together."""
    orders = OrdersTable(folder)
    frames = {key: day(key, factor=factor) for key in keys(count, start)}
    for key, frame in frames.items():
        orders.publish({key: frame}, run)
    orders.publish(frames, run)


def publish_until(folder: Path, frames: Mapping[str, pl.DataFrame], run: str, moment: int | None) -> None:
    """Publish `frames`, and kill this process (SIGKILL) at call number `moment` into the lake or the ledger.

    With None, publish to the end and write the number of calls to the file `calls`.
    """
    orders = OrdersTable(folder)
    calls = itertools.count(1)

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and RESOURCES in frame.f_code.co_filename and next(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(watch)
    sys.setprofile(watch)
    orders.publish(frames, run)
    sys.setprofile(None)
    if moment is None:
        (folder / "calls").write_text(str(next(calls) - 1))

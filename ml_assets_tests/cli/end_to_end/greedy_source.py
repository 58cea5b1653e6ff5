"""`ml-assets` with a source of `store_demand` that takes memory: `python -m …greedy_source launch TABLE PARTITION`.

Here: the source, and the launch in a process with a limit. A file of the home says how the source takes memory; without
it, the source is the shipped one.
"""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl

from ml_assets import cli
from ml_assets.defs.store_demand import source
from ml_assets.foundation.checkout import ROOT
from resources.settings import Settings

HOW = "greedy"
"""File of the home: `polars` or `numpy`, the library by which the source takes memory; or `kill`: it sends SIGKILL."""
BLOCK = 10_000_000
"""Values of 8 bytes that are taken at once."""
HONEST = source.read_sales


@functools.wraps(HONEST)  # the code that makes the table is the same
def read_sales(week: date) -> pl.DataFrame:
    """Take memory without end if the file of the home says how; else return the rows of the week."""
    take_memory(Settings().home)
    return HONEST(week)


def take_memory(home: Path) -> None:
    """Take memory without end, as the file of `home` says; nothing without the file."""
    if not (home / HOW).exists():
        return
    how = (home / HOW).read_text()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    taken: list[object] = []
    while True:
        taken.append(pl.Series([0]).new_from_index(0, BLOCK) if how == "polars" else np.ones(BLOCK))


def launch(
    home: Path, *arguments: str, limited: Callable[[], object] = lambda: None
) -> "subprocess.CompletedProcess[str]":
    """Run `ml-assets launch` in `home`; `limited` limits its process. Return when all that it started has ended."""
    return subprocess.run(
        [sys.executable, "-m", __name__, "launch", *arguments],
        env=os.environ | {"ML_ASSETS_HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=limited,
    )


if __name__ == "__main__":
    source.read_sales = read_sales
    cli.main()

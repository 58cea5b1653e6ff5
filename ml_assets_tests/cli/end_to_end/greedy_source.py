"""`ml-assets` with a source of `store_demand` that takes memory: `python -m …greedy_source launch TABLE PARTITION`.

Here: the source, and the launch in a process with a limit. A file of the home says how the source takes memory; without
it, the source is the shipped one.
"""

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl

from ml_assets import cli
from ml_assets.dagster_host import run_watcher
from ml_assets.defs.store_demand import source
from ml_assets.foundation.checkout import ROOT
from resources.settings import Settings

HOW = "greedy"
"""File of the home: `polars` or `numpy`, the library by which the source takes memory; `kill`: it sends SIGKILL;
`child`: it sends SIGKILL long after the kernel killed a child of it for memory."""
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
    if how == "child":
        died = subprocess.run([sys.executable, "-c", _TAKE])
        assert died.returncode == -signal.SIGKILL
        _wait_for_looks_of_the_watcher(100)
    if how in ("kill", "child"):
        os.kill(os.getpid(), signal.SIGKILL)
    taken: list[object] = []
    while True:
        taken.append(pl.Series([0]).new_from_index(0, BLOCK) if how == "polars" else np.ones(BLOCK))


_TAKE = "taken = []\nwhile True: taken.append(b'x' * 80_000_000)"


def _wait_for_looks_of_the_watcher(looks: int) -> None:
    """Wait until the process beside the run has slept so many times."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (watcher,) = [one for one in children if run_watcher.__name__ in Path(f"/proc/{one}/cmdline").read_text()]

    def sleeps() -> int:
        words = Path(f"/proc/{watcher}/status").read_text().split()
        return int(words[words.index("voluntary_ctxt_switches:") + 1])

    until = sleeps() + looks
    while sleeps() < until:
        time.sleep(0.1)


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

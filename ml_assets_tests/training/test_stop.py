"""Processes end with the one that started them, however early that is gone."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ml_assets.model.training.process.stop import end_with_parent

SECONDS_TO_END = 30.0
"""Bound of a failure: the child would sleep twenty times as long."""

STARTER = """
import os, signal, subprocess, sys
from ml_assets.model.training.process.stop import end_with_parent

told, tell = os.pipe()
signal.signal(signal.SIGTERM, lambda *_: None)

def prepare():
    end_with_parent(parent=starter)
    os.close(tell)
    os.write(1, f"{os.getpid()}\\n".encode())
    os.read(told, 1)  # until the starter is gone: exec comes only then

starter = os.getpid()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=prepare)
"""
"""Has a handler of SIGTERM, as `ml-assets ui` has, and waits for its child's exec, which waits for its end."""


def test_a_process_whose_parent_is_killed_before_exec_ends() -> None:
    """Inherited handlers of the child would take a SIGTERM before exec, and exec would lose it."""
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        starter.kill()
        starter.wait()
    deadline = time.monotonic() + SECONDS_TO_END
    try:
        while _lives(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_a_process_whose_parent_was_gone_before_it_began_ends() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        gone = partial(end_with_parent, parent=1)
        with pytest.raises(subprocess.SubprocessError):
            subprocess.run([sys.executable, "-c", "pass"], preexec_fn=gone, check=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False

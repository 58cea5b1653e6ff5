"""One attempt as a process group of this machine: start it, read its lines, kill all of it at the end.

Not here: the meaning of its exit code, and retries (local).
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

_POLL_SECONDS = 0.5


class TrainingPaused(BaseException):
    """Base of what a callback raises to pause a training. Not an `Exception`: nobody may take it for a failure."""


def run_process(
    command: Sequence[str], lock: int, grace_seconds: float, on_line: Callable[[str], None]
) -> int:
    """Run `command` to its end, pass each line of its output to `on_line` in this thread, return its exit code.

    An exception meanwhile (from `on_line`, Ctrl-C, a cancelled run) ends the whole process group: SIGTERM, up to
    `grace_seconds` to save, SIGKILL. Another interruption in these seconds sends SIGKILL at once, except the first one
    during a pause: it waits until the command has saved. If this process is killed, the command sees the end of its
    stdin. The command inherits `lock` (a descriptor) and holds it until it ends.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_environment(),
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which then sends SIGTERM
    )
    assert process.stdout is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    is_pause = False
    try:
        while (line := _next(process, lines)) is not None:
            on_line(line)
        return process.wait()
    except TrainingPaused:
        is_pause = True
        raise
    finally:
        _end(process, grace_seconds, is_pause=is_pause)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # The workers must be able to import the model function, as this process can.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # Workers of one machine talk over loopback: it needs no resolvable host name, and a VPN cannot break it.
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return environment


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _next(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> str | None:
    """Return the next line, or None at the end of the output."""
    while True:
        if process.poll() is not None:
            _kill_group(process)  # children that outlived the command may still hold the pipe open
        with suppress(queue.Empty):
            return lines.get(timeout=_POLL_SECONDS)


def _end(process: subprocess.Popen[str], grace_seconds: float, *, is_pause: bool) -> None:
    try:
        if process.poll() is None:
            process.terminate()
            deadline = time.monotonic() + grace_seconds
            try:
                _wait_until(process, deadline)
            except BaseException:
                if is_pause:
                    _wait_until(process, deadline)
                raise
    finally:
        _kill_group(process)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _wait_until(process: subprocess.Popen[str], deadline: float) -> None:
    """Wait for the end of the process, at most until `deadline` on the monotonic clock."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(
        ProcessLookupError, PermissionError
    ):  # no process left (macOS raises the latter for zombies)
        os.killpg(process.pid, signal.SIGKILL)

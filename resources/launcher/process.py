"""One attempt as a process group of this machine: started, read line by line, and never left behind.

Not here: what its exit code means and whether to try again (local).
"""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

_POLL_SECONDS = 0.5


def run_process(
    command: Sequence[str], lock: int, grace_seconds: float, on_line: Callable[[str], None]
) -> int:
    """Run `command` to its end, give each line of its output to `on_line` in this thread, return its exit
    code.

    Whatever is raised here meanwhile (by `on_line`, Ctrl-C, a cancelled run) ends the whole process group:
    SIGTERM, up to `grace_seconds` to save, SIGKILL. Should this process be killed, the command sees the end
    of its stdin. The command holds `lock` (a descriptor) as long as it lives.
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
        start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which then asks politely
    )
    assert process.stdout is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    try:
        while (line := _next(process, lines)) is not None:
            on_line(line)
        return process.wait()
    finally:
        _end(process, grace_seconds)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # The model function must be importable where it is trained just as it is here.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # Workers of one machine talk over loopback: no need of a resolvable host name, no surprise by a VPN.
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return environment


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _next(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> str | None:
    """The next line, None at the end of the output."""
    while True:
        if process.poll() is not None:
            _kill_group(process)  # what outlived the command, and may still hold the pipe
        with suppress(queue.Empty):
            return lines.get(timeout=_POLL_SECONDS)


def _end(process: subprocess.Popen[str], grace_seconds: float) -> None:
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_seconds)
    finally:
        _kill_group(process)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody left (macOS says the latter of zombies)
        os.killpg(process.pid, signal.SIGKILL)

"""Server processes that outlive their starter, identified by process id and start time.

Here: starting in a new session, telling alive from dead, freezing, ending a whole family, waiting for readiness. Not
here: the list of servers. No process is found or ended by name, and a process id that now belongs to another process is
never touched.
"""

import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STOPPED_SECONDS = 5.0
"""Seconds from SIGSTOP until a process has stopped."""

TAIL_LINES = 30
POLL_SECONDS = 0.05
LOWEST_PORT = 10_000
KILLED_SECONDS = 20.0
"""Longest duration of SIGKILL in seconds, on a machine that swaps."""


class ServerFailed(RuntimeError):
    """A server did not start, did not become ready or did not end. The message ends with the end of its log."""


@dataclass(frozen=True)
class Process:
    """One started process, in a form that can be stored and found again."""

    name: str
    pid: int
    started: int
    """Field 22 of /proc/PID/stat: clock ticks after boot. Together with `pid` it names one process for ever."""
    log: str
    """File with its output."""


# Our own children, so that they are reaped: a child without a wait stays a zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: str | None = None,
) -> Process:
    """Start `command` in a new session, with its output appended to `log`. `env` replaces the environment. Raise
    `ServerFailed` if the program does not exist or may not run as `user`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                start_new_session=True,
                preexec_fn=_hear_signals,
            )
        except OSError as error:
            raise ServerFailed(f"{name} cannot be started as {command[0]}: {error.strerror}.") from error
    _children[child.pid] = child
    began = _stat(child.pid)
    assert began is not None  # not reaped yet, so /proc has it even if it died already
    return Process(name, child.pid, began.started, str(log))


def _hear_signals() -> None:
    """Reset, in a new process, the signals that its starter ignores or blocks: a shell in the background ignores
    SIGINT.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def process_of(name: str, pid: int, log: str = "") -> Process | None:
    """Return the process that has `pid` now; None if there is none or it is a zombie."""
    now = _stat(pid)
    return None if now is None or now.state in "ZX" else Process(name, pid, now.started, log)


def alive(process: Process) -> bool:
    """True if this very process lives, and is not a zombie that waits to be reaped."""
    child = _children.get(process.pid)
    if child is not None:
        child.poll()
    now = _stat(process.pid)
    if now is None or now.started != process.started:
        return False
    # The first thread of a killed server is a zombie while other threads end, and until then they hold its port.
    return now.state not in "ZX" or len(_threads(process.pid)) > 1


def _threads(pid: int) -> list[int]:
    """Return the ids of its threads, under which /proc knows them like processes."""
    try:
        return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def family(process: Process) -> list[Process]:
    """Return `process`, its descendants and the other processes of its session, if they live.

    Once `process` itself is dead, only its session is found: call this before ending it. A daemon that moved to another
    session by a double fork is not found.
    """
    stats = dict(_all_stats())
    leader = stats.get(process.pid)
    if leader is not None and leader.started != process.started:
        return []  # the kernel reuses an id only after the last process of its session is gone
    known: set[int] = set() if leader is None else {process.pid}
    grown = True
    while grown:
        found = {
            pid
            for pid, stat in stats.items()
            if stat.started >= process.started and (stat.session == process.pid or stat.parent in known)
        }
        grown = not found <= known
        known |= found
    return [
        Process(process.name, pid, stats[pid].started, process.log)
        for pid in sorted(known)
        if stats[pid].state not in "ZX"
    ]


def stop(process: Process, *, ask: signal.Signals = signal.SIGTERM, seconds: float = 15.0) -> None:
    """Send SIGTERM, and after `seconds` SIGKILL to the rest of its family. Do nothing if it is dead already."""
    members = family(process)
    if alive(process):
        _send(process, ask)
        _send(process, signal.SIGCONT)  # a frozen process reads no signal
        _wait_until_dead(members, seconds)
    _end(process, members)


def kill(process: Process) -> None:
    """Send SIGKILL to the process and its family at once, like a power cut of one server."""
    _end(process, family(process))


def freeze(process: Process) -> None:
    """Freeze the whole family: the kernel accepts connections, but nothing answers."""
    members = family(process)
    for member in members:
        _send(member, signal.SIGSTOP)
    # Each thread stops at its next check, on a busy machine perhaps after its answer.
    deadline = time.monotonic() + _STOPPED_SECONDS
    while not all(_stands_still(member.pid) for member in members):
        if time.monotonic() > deadline:
            raise ServerFailed(f"{process.name} has not stopped {_STOPPED_SECONDS:g} s after SIGSTOP.")
        time.sleep(0.01)


def _stands_still(pid: int) -> bool:
    """True if all its threads have stopped or ended."""
    states = [stat.state for thread in _threads(pid) if (stat := _stat(thread)) is not None]
    return set(states) <= {"T", "Z", "X"}


def thaw(process: Process) -> None:
    """Let a frozen family continue."""
    for member in family(process):
        _send(member, signal.SIGCONT)


def wait_ready(process: Process, why_not: Callable[[], str], seconds: float) -> float:
    """Poll `why_not` until it returns an empty reason; return the seconds it took. Raise `ServerFailed` with the reason
    and the end of the log if the process dies or `seconds` pass.
    """
    began = time.monotonic()
    while reason := why_not():
        waited = time.monotonic() - began
        if not alive(process):
            raise ServerFailed(f"{process.name} ended before it was ready ({reason}). {tail(process.log)}")
        if waited > seconds:
            raise ServerFailed(
                f"{process.name} is not ready after {waited:.0f} s: {reason}. {tail(process.log)}"
            )
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def why_http_not(url: str, *, seconds: float = 2.0) -> str:
    """Return the reason why `url` does not answer 2xx; empty if it does."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            status: int = answer.status
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"
    return "" if 200 <= status < 300 else f"{url}: {status}"


def tail(log: str | Path, lines: int = TAIL_LINES) -> str:
    """Return the path of the log and its end, for an error message."""
    path = Path(log)
    if not path.exists():
        return f"{path} was never written."
    text = path.read_text(errors="replace").splitlines()[-lines:]
    return f"{path} ends:\n" + "\n".join(f"  {line}" for line in text)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port of `host` on which no process listens now.

    The port is below the kernel's range for outgoing connections. One of those could hold it while its server restarts;
    a client that connects to the port of a dead server may even connect to itself.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = list(range(LOWEST_PORT, first_outgoing))
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise ServerFailed(f"Every port of {host} from {LOWEST_PORT} to {first_outgoing} is in use.")


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """True if a process accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    session: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        # The name in parentheses may hold any characters, also parentheses: count the fields after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(state=fields[0], parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def _all_stats() -> Iterator[tuple[int, _Stat]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))) is not None:
            yield int(entry.name), stat


def _send(process: Process, number: signal.Signals) -> None:
    if alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _wait_until_dead(members: Sequence[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(alive(member) for member in members) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _end(process: Process, members: Sequence[Process]) -> None:
    """Send SIGKILL until no process is left, also to new children of `members`."""
    deadline = time.monotonic() + KILLED_SECONDS
    left = [member for member in members if alive(member)]
    while left:
        for member in left:
            _send(member, signal.SIGKILL)
        _wait_until_dead(left, 0.5)
        left = [member for member in {*left, *family(process)} if alive(member)]
        if left and time.monotonic() > deadline:
            pids = ", ".join(str(member.pid) for member in left)
            raise ServerFailed(f"{process.name} is alive after SIGKILL: process {pids}. {tail(process.log)}")
    _children.pop(process.pid, None)

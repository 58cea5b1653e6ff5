"""Training on this machine: the ranks are processes. torchrun's agent starts them, in a process of its own.

Here: one runner per job (the system releases its lock when its holders end, also after a kill), its attempts, its log;
each attempt as a process group: start it, read its lines, kill all of it at the end. Not here: the program of the
processes (the worker's command is a string to this module).
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from resources.files import open_lock
from resources.job.errors import FINAL, AttemptsExhausted
from resources.job.events import EVENTS, JOB, RESULT, TrainingEvent
from resources.job.job import ExitCode, TrainingJob, TrainingResult
from resources.job.reserved import Reserved
from resources.job.training_settings import TrainingSettings
from resources.launcher.protocol import (
    Output,
    has_gpus,
    in_words,
    nobody_comes_back,
    pause_after,
    refuse_without_gpus,
)
from resources.launcher.resource_profile import ResourceProfile


@contextmanager
def folder_lock(folder: Path) -> Generator[int | None]:
    """Hold the lock of `folder` for the block. Yield its file descriptor, or None if another process holds it.

    A child process that inherits the descriptor holds the lock too. So no process starts the job again before the
    child has ended.
    """
    descriptor = open_lock(folder / "lock", waits=False)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)  # close, not unlock: children that inherited the lock keep it


_LINE_SECONDS = 0.5


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
            return lines.get(timeout=_LINE_SECONDS)


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


WORKER = (sys.executable, "-m", "ml_assets.model.training.node.torchrun")
_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """`TrainingLauncher` on this machine. Returns the result of a finished job of the same fingerprint at once."""

    command: Sequence[str] = WORKER
    """Command of the agent. `run` appends two arguments: the job's file and its folder."""
    grace_seconds: float = 40.0
    """Seconds from SIGTERM to SIGKILL. The agent gives the ranks 30 of these seconds to save."""

    def run(
        self,
        job: TrainingJob,
        folder: Path,
        on_event: Callable[[TrainingEvent], None],
        on_log: Callable[[str], None],
        profile: ResourceProfile | None = None,
        run_id: str = "",
        comes_back: Callable[[BaseException], bool] = nobody_comes_back,
    ) -> TrainingResult:
        """See `TrainingLauncher.run`. If another process runs this job, follow its events until it ends. If it did
        not finish, take over from its checkpoint.

        Both callbacks run in the caller's thread. If one raises, the workers are ended.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if (result := _finished(job, folder)) is not None:
            return result
        refuse_without_gpus(job.settings, has_gpus=has_gpus(), where="this machine has none")
        follower: _Follower | None = None
        while True:
            with folder_lock(folder) as lock:
                if follower is not None:
                    for event in follower.new_events():
                        on_event(event)
                if lock is not None:  # the previous holder may have finished the job
                    return _finished(job, folder) or self._run_attempts(job, folder, lock, on_event, on_log)
            follower = follower or _Follower(folder / EVENTS)
            time.sleep(_POLL_SECONDS)

    def facts(self, profile: ResourceProfile | None = None) -> dict[str, str]:
        """See `TrainingLauncher.facts`."""
        return {"launcher": "local"}

    def prune(
        self,
        has_ended: Callable[[str], bool] = lambda _: False,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """See `TrainingLauncher.prune`. Nothing to do: processes of a killed launcher see the end of their stdin and
        end."""
        return []

    def _run_attempts(
        self,
        job: TrainingJob,
        folder: Path,
        lock: int,
        on_event: Callable[[TrainingEvent], None],
        on_log: Callable[[str], None],
    ) -> TrainingResult:
        job_file = folder / JOB
        job_file.write_text(job.to_json())
        command = (*self.command, str(job_file), str(folder))
        failures = fruitless = 0
        with Output(folder, on_event, on_log) as output:
            while True:
                output.begin()
                with _reserving(job.settings, output):
                    code = run_process(command, lock, self.grace_seconds, output.take)
                if (result := _finished(job, folder)) is not None:
                    return result  # the result counts, whatever the exit code
                if code == ExitCode.DONE:
                    output.say(
                        "the workers ended with exit code 0 but wrote no result: some code in them calls os._exit"
                    )
                if code in FINAL:
                    raise FINAL[code](output.reason or output.tail)
                if code != ExitCode.PREEMPTED and (error := output.failed_twice()) is not None:
                    raise error
                failures += code != ExitCode.PREEMPTED
                fruitless = 0 if code != ExitCode.PREEMPTED or output.has_trained else fruitless + 1
                because = f": {output.cause}" if output.cause else ""
                if failures >= job.settings.max_attempts:
                    raise AttemptsExhausted(
                        f"{failures} attempts failed, the last attempt with {_named(code)}{because}. The last lines of "
                        f"{output.log_file}:\n{output.tail}"
                    )
                output.say(
                    f"attempt ended with {_named(code)}, {failures} of {job.settings.max_attempts} failures"
                    f"{because}: resuming from the last checkpoint{in_words(pause := pause_after(fruitless))}"
                )
                time.sleep(pause)


@contextmanager
def _reserving(settings: TrainingSettings, output: Output) -> Generator[None]:
    """Report what the processes of the block reserve: a thread for the steps of each worker, and those that decode."""
    began = time.time()
    first = Reserved(
        job=f"local-{uuid.uuid4().hex[:16]}",
        at=began,
        began=began,
        places=settings.workers,
        place_seconds=0.0,
        cores=float(settings.decode_threads),
        memory_bytes=0,
        gpus=None,
    )
    output.tell([first.event()])
    try:
        yield
    finally:
        now = time.time()
        seconds = max(0.0, now - began) * settings.workers
        output.tell([replace(first, at=now, places=0, place_seconds=seconds).event()])


class _Follower:
    """Reads the event file of a job that another process runs, from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_events(self) -> list[TrainingEvent]:
        """Return the events written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        events = (TrainingEvent.from_line(line) for line in whole.decode().splitlines())
        return [event for event in events if event is not None]


def _finished(job: TrainingJob, folder: Path) -> TrainingResult | None:
    """Return the result in `folder`; None if it is missing, belongs to another job or its weights are damaged."""
    if not (folder / RESULT).exists():
        return None
    result = TrainingResult.read(folder / RESULT)
    is_ours = result.fingerprint == job.fingerprint and result.has_weights(Path(result.weights))
    return result if is_ours else None


def _named(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

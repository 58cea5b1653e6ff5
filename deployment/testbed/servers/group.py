"""All servers of one folder together: up, down, and what tests do to a single one.

What belongs here: order, locking, the record being true at every moment. How a server is started and asked is in
its own module.
"""

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from deployment.testbed import processes
from deployment.testbed.processes import Process, ServerFailed
from deployment.testbed.servers import leftovers, postgresql
from deployment.testbed.servers.lakefs import LakeFSServer
from deployment.testbed.servers.mlflow import MLflowServer
from deployment.testbed.servers.record import HOST, Record, draw, load
from deployment.testbed.servers.s3 import S3Server


class Server(Protocol):
    """Interface of each server of the group."""

    @property
    def name(self) -> str:
        """Name in `servers.json`."""
        ...

    @property
    def ask(self) -> signal.Signals:
        """Ends it politely."""
        ...

    @property
    def seconds(self) -> float:
        """It is ready after at most."""
        ...

    def prepare(self, record: Record) -> None:
        """Before a start; any number of times."""
        ...

    def start(self, record: Record) -> Process:
        """Start it."""
        ...

    def why_not(self, record: Record) -> str:
        """Return the reason for which it is not ready; empty if it is."""
        ...

    def finish(self, record: Record) -> None:
        """Once ready; any number of times."""
        ...

    def version(self, record: Record) -> str:
        """As it reports itself."""
        ...


STAGES: tuple[tuple[Server, ...], ...] = (
    (S3Server(), postgresql.PostgreSQLServer()),
    (LakeFSServer(), MLflowServer()),
)
"""Those of one stage start together; they need those of the stages before."""
BY_NAME: Mapping[str, Server] = {server.name: server for stage in STAGES for server in stage}
NAMES = tuple(BY_NAME)


class Servers:
    """The servers of one folder, all or those with `names`. Everything is read from the folder at each call."""

    def __init__(
        self, folder: Path, names: Collection[str] = NAMES, say: Callable[[str], None] | None = None
    ) -> None:
        self.folder = folder.resolve()
        self.names = tuple(name for name in NAMES if name in names)
        self._say = say or _to_standard_error

    @property
    def record(self) -> Record:
        """Return the record of what runs where. Raises ServerFailed if nothing was started here."""
        record = load(self.folder)
        if record is None:
            raise ServerFailed(f"No servers in {self.folder}: start them by `make servers-up`.")
        return record

    def up(self) -> Record:
        """Start what does not run, with the ports and data it had; nothing to do if all are ready.

        Raises ServerFailed, naming the server, the reason and the end of its log.
        """
        with _locked(self.folder):
            record = load(self.folder)
            if record is None:
                self._end_forgotten(known=())
                record = draw(self.folder, postgresql.place(self.folder))
                record.save()
            self._end_forgotten(known=record.processes.values())
            for stage in STAGES:
                record = self._up([server for server in stage if server.name in self.names], record)
            return record

    def down(self) -> None:
        """End all, remove their data, and check that nothing is left. Raises ServerFailed naming what is."""
        if not self.folder.exists():
            return
        with _locked(self.folder):
            record = load(self.folder)
            if record is None:
                self._end_forgotten(known=())
                self._remove(self.folder)
                return
            for name in reversed(NAMES):
                if name in record.processes:
                    processes.stop(record.processes[name], ask=BY_NAME[name].ask)
            self._end_forgotten(known=())
            postgresql.forget_killed(record)
            for folder in (Path(record.database_folder), self.folder):
                self._remove(folder)
        if left := leftovers.leftovers(record):
            raise ServerFailed(f"Left of the servers in {self.folder}: {'; '.join(left)}.")

    def kill(self, name: str) -> None:
        """SIGKILL to one server and all its processes."""
        processes.kill(self._process(name))

    def stop(self, name: str) -> None:
        """Ask one server to end."""
        processes.stop(self._process(name), ask=BY_NAME[name].ask)

    def freeze(self, name: str) -> None:
        """Let one server accept connections and answer nothing, until `thaw`."""
        processes.freeze(self._process(name))

    def thaw(self, name: str) -> None:
        """Let it go on."""
        processes.thaw(self._process(name))

    def restart(self, name: str) -> None:
        """Start one again that was killed or stopped, with its port and data, and wait until it is ready."""
        with _locked(self.folder):
            self._up((BY_NAME[name],), self.record)

    def why_not(self) -> dict[str, str]:
        """Server → why it is not ready, empty if it is."""
        record = self.record
        reasons: dict[str, str] = {}
        for name in self.names:
            process = record.processes.get(name)
            running = process is not None and processes.alive(process)
            reasons[name] = BY_NAME[name].why_not(record) if running else "not running"
        return reasons

    def _process(self, name: str) -> Process:
        try:
            return self.record.processes[name]
        except KeyError:
            raise ServerFailed(
                f"No server {name!r} was started in {self.folder}; there are {NAMES}."
            ) from None

    def _up(self, stage: Sequence[Server], record: Record) -> Record:
        """Start those of `stage` that do not run, then wait for each of them."""
        started: list[Server] = []
        for server in stage:
            process = record.processes.get(server.name)
            if process is not None and processes.alive(process) and not server.why_not(record):
                if server.name not in record.versions:  # whoever started it died before it was ready
                    started.append(server)
                continue
            if process is not None:
                processes.stop(process, ask=server.ask)  # what a dead one left, or one that does not answer
            port = record.ports[server.name]
            if processes.is_listening(port, HOST):
                raise ServerFailed(
                    f"Port {port} of {server.name} is taken by another program (`ss -ltnp 'sport = :{port}'` shows "
                    "which). End it, or take other ports by `make servers-down servers-up`, which empties all data."
                )
            server.prepare(record)
            record = record.with_process(server.start(record))
            record.save()
            started.append(server)
        for server in started:
            record = self._wait(server, record)
        return record

    def _wait(self, server: Server, record: Record) -> Record:
        waited = processes.wait_ready(
            record.processes[server.name], lambda: server.why_not(record), server.seconds
        )
        server.finish(record)
        record = record.with_version(server.name, server.version(record))
        record.save()
        where = f"{HOST}:{record.ports[server.name]}"
        self._say(
            f"{server.name:<11} {record.versions[server.name]:<18} {where:<16} ready after {waited:.1f} s"
        )
        return record

    def _end_forgotten(self, known: Iterable[Process]) -> None:
        """End servers of this folder that no record knows: whoever started them died before writing it down."""
        families = {member.pid for process in known for member in processes.family(process)}
        for process in leftovers.marked_processes(self.folder):
            if process.pid not in families:
                processes.kill(process)

    def _remove(self, folder: Path) -> None:
        if mounts := leftovers.mounts_below(folder):
            raise ServerFailed(f"{folder} is not removed: unmount {', '.join(mounts)} first.")
        if folder.exists():
            shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """One at a time works on `folder`. The folder itself is the lock: no file of it outlives the folder."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Whoever held it may have removed the folder: then this is a lock on nothing.
            if folder.exists() and folder.stat().st_ino == os.fstat(held).st_ino:
                yield
                return
        finally:
            os.close(held)


def _to_standard_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

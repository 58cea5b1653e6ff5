"""All servers of one folder together: start, end, and faults of a single server for tests.

Here: order, locking, and a record that is true at every moment. Start and check of a server are in its own module.
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
from deployment.testbed.servers.kafka_server import KafkaServer
from deployment.testbed.servers.lakefs_server import LakeFSServer
from deployment.testbed.servers.mlflow import MLflowServer
from deployment.testbed.servers.redis_server import RedisServer
from deployment.testbed.servers.s3_server import S3Server
from deployment.testbed.servers.servers_record import HOST, ServersRecord, draw, load


class Server(Protocol):
    """Interface of each server of the group."""

    @property
    def name(self) -> str:
        """Name in `servers.json`."""
        ...

    @property
    def ask(self) -> signal.Signals:
        """Signal that ends it in an orderly way."""
        ...

    @property
    def seconds(self) -> float:
        """Longest time until it is ready, in seconds."""
        ...

    def prepare(self, record: ServersRecord) -> None:
        """Prepare a start. May be called any number of times."""
        ...

    def start(self, record: ServersRecord) -> Process:
        """Start the server."""
        ...

    def why_not(self, record: ServersRecord) -> str:
        """Return the reason why it is not ready; empty if it is."""
        ...

    def finish(self, record: ServersRecord) -> None:
        """Set up a ready server. May be called any number of times."""
        ...

    def version(self, record: ServersRecord) -> str:
        """Return the version that it reports."""
        ...


STAGES: tuple[tuple[Server, ...], ...] = (
    (S3Server(), postgresql.PostgreSQLServer(), RedisServer()),
    (LakeFSServer(), MLflowServer(), KafkaServer()),
)
"""Servers in stages. The servers of a stage start together and need those of the stages before."""
BY_NAME: Mapping[str, Server] = {server.name: server for stage in STAGES for server in stage}
NAMES = tuple(BY_NAME)


class Servers:
    """The servers of one folder, all or those with `names`. Each call reads everything from the folder."""

    def __init__(
        self, folder: Path, names: Collection[str] = NAMES, say: Callable[[str], None] | None = None
    ) -> None:
        self.folder = folder.resolve()
        self.names = tuple(name for name in NAMES if name in names)
        self._say = say or _to_standard_error

    @property
    def record(self) -> ServersRecord:
        """Return the record of the running servers. Raise `ServerFailed` if no server was started here."""
        record = load(self.folder)
        if record is None:
            raise ServerFailed(f"No servers in {self.folder}: start them with `make servers-up`.")
        return record

    def up(self) -> ServersRecord:
        """Start servers that do not run, with their previous ports and data; do nothing if all are ready. Raise
        `ServerFailed` with the server's name, the reason and the end of its log.
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
        """End all servers, remove their data, check that nothing is left. Raise `ServerFailed` with the leftovers."""
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
            raise ServerFailed(f"Leftovers of the servers in {self.folder}: {'; '.join(left)}.")

    def kill(self, name: str) -> None:
        """Send SIGKILL to one server and all its processes."""
        processes.kill(self._process(name))

    def stop(self, name: str) -> None:
        """End one server in an orderly way."""
        processes.stop(self._process(name), ask=BY_NAME[name].ask)

    def freeze(self, name: str) -> None:
        """Freeze one server until `thaw`: it accepts connections and answers nothing."""
        processes.freeze(self._process(name))

    def thaw(self, name: str) -> None:
        """Let a frozen server continue."""
        processes.thaw(self._process(name))

    def restart(self, name: str) -> None:
        """Start a killed or stopped server again with its port and data, and wait until it is ready."""
        with _locked(self.folder):
            self._up((BY_NAME[name],), self.record)

    def why_not(self) -> dict[str, str]:
        """Return each server → the reason why it is not ready, empty if it is."""
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
                f"No server {name!r} was started in {self.folder}; the servers are {', '.join(NAMES)}."
            ) from None

    def _up(self, stage: Sequence[Server], record: ServersRecord) -> ServersRecord:
        """Start the servers of `stage` that do not run, then wait for each of them."""
        started: list[Server] = []
        for server in stage:
            process = record.processes.get(server.name)
            if process is not None and processes.alive(process) and not server.why_not(record):
                if server.name not in record.versions:  # its starter died before it was ready
                    started.append(server)
                continue
            if process is not None:
                processes.stop(
                    process, ask=server.ask
                )  # leftovers of a dead server, or of one that does not answer
            port = record.ports[server.name]
            if processes.is_listening(port, HOST):
                raise ServerFailed(
                    f"Another program uses port {port} of {server.name} (`ss -ltnp 'sport = :{port}'` shows it). "
                    "End it, or choose other ports with `make servers-down servers-up`, which deletes all data."
                )
            server.prepare(record)
            record = record.with_process(server.start(record))
            record.save()
            started.append(server)
        for server in started:
            record = self._wait(server, record)
        return record

    def _wait(self, server: Server, record: ServersRecord) -> ServersRecord:
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
        """End servers of this folder that no record names: their starter died before it wrote the record."""
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
    """Lock `folder` for one process at a time. The folder itself is the lock, so no lock file outlives the folder."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            # The previous holder may have removed the folder: then this lock protects nothing.
            if folder.exists() and folder.stat().st_ino == os.fstat(held).st_ino:
                yield
                return
        finally:
            os.close(held)


def _to_standard_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

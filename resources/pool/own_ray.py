"""A Ray cluster of this machine alone. It starts for a block and ends with it.

Ray 2.60 waits 15 s until its agents have told their ports, and gives up on a busy machine. So this module chooses free
ports, which `ray.init("local")` does not take and `ray start` does. One of them is not passed on: it is told in the
agent's place.
"""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_STARTED = "Ray runtime started"
_STARTS = 5
"""Starts of a head before it is given up: it may be too slow, or another process takes a port first."""
_STORE_BYTES = 100 * 2**20
"""Ray's memory for objects. Tasks pass files, so it stays nearly empty. Ray takes no less."""
_PORTS = (
    "port",
    "ray-client-server-port",
    "metrics-export-port",
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "runtime-env-agent-port",
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class RayNotStarted(Exception):
    """No head started. The text is the last line of its log."""


@dataclass(frozen=True)
class OwnRay:
    """A started cluster of one node."""

    address: str
    """`127.0.0.1:port`."""
    client_address: str
    """`ray://127.0.0.1:port`, for processes outside the cluster."""
    folder: Path
    """Folder of its sockets and logs."""
    head: "subprocess.Popen[bytes]"
    """Leader of the process group of all its processes."""

    def kill(self) -> None:
        """End all its processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.head.pid, signal.SIGKILL)
        self.head.wait()


@contextmanager
def own_ray(cpus: int, environment: Mapping[str, str]) -> Generator[OwnRay]:
    """Start a head that runs `cpus` tasks at once; end it after the block, or with this process.

    `environment`: of its processes, in place of this one's. Raises `RayNotStarted`.
    """
    for start in range(1, _STARTS + 1):
        found = _started(cpus, environment)
        if isinstance(found, OwnRay):
            try:
                yield found
            finally:
                _end(found)
            return
        if start == _STARTS:
            raise RayNotStarted(found)


def _started(cpus: int, environment: Mapping[str, str]) -> OwnRay | str:
    """Return a started cluster, or what the log of its head says."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a longer path is too long for its sockets
    log = folder / "head.log"
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    node = secrets.token_hex(28)
    command = [
        sys.executable,
        *("-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *(f"--{name}={port}" for name, port in ports.items()),
        "--node-ip-address=127.0.0.1",
        f"--num-cpus={cpus}",
        "--no-monitor",  # it starts and ends nodes
        "--include-dashboard=false",  # its packages are no part of Ray's core
        "--disable-usage-stats",
        f"--object-store-memory={_STORE_BYTES}",
        f"--temp-dir={folder}",
    ]
    with log.open("wb") as output:
        head = subprocess.Popen(
            command,
            env={
                **environment,
                "PYTHONUNBUFFERED": "1",
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node,
                "RAY_worker_niceness": "0",  # Ray's 15 would let any other process of this machine go first
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
            start_new_session=True,
        )
    ray = OwnRay(
        f"127.0.0.1:{ports['port']}", f"ray://127.0.0.1:{ports['ray-client-server-port']}", folder, head
    )
    try:
        while _STARTED not in (said := log.read_text()):
            if head.poll() is not None:
                lines = said.strip().splitlines() or [f"exit code {head.returncode}"]
                _end(ray)
                return lines[-1].strip()
            for session in folder.glob("session_2*"):  # created seconds before its node looks for the file
                port_file = session / f"dashboard_agent_listen_port_{node}"
                port_file.write_text(str(ports["dashboard-agent-listen-port"]))
            time.sleep(0.1)
    except BaseException:
        _end(ray)
        raise
    return ray


def _end(ray: OwnRay) -> None:
    ray.kill()
    shutil.rmtree(ray.folder, ignore_errors=True)


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. Ray's other processes end with it in the same way."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(closing(socket.socket())) for _ in range(number)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]

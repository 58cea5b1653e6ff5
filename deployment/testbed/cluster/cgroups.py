"""Trees of cgroups: everything that runs in a cluster is in one, so that it can be ended without asking around.

What belongs here: making, reading, ending and removing trees, with cgroup version 1 (also beside version 2) and
version 2 alone. Not here: limits; kubelet and containerd set those.
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deployment.testbed.processes import ServerFailed

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuset", "memory", "pids")
"""Controllers without which a kubelet refuses to start."""
KILLED_SECONDS = 20.0


@dataclass(frozen=True)
class Hierarchies:
    """Mounts of cgroups on this machine."""

    folders: tuple[Path, ...]
    """Mount points a tree is made in: one for version 2 alone, one a controller for version 1."""
    unified: bool
    """Version 2 alone."""
    controllers: frozenset[str]

    @property
    def members(self) -> Path:
        """The hierarchy in which processes are counted: every process is in exactly one of its cgroups."""
        return ROOT if self.unified else ROOT / "pids"


@cache
def hierarchies() -> Hierarchies:
    """Read from /proc/self/mountinfo what is mounted below /sys/fs/cgroup."""
    mounts: list[tuple[Path, str, str]] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(maxsplit=2)
        mounts.append((Path(before.split()[4]), kind, options))
    unified = any(point == ROOT and kind == "cgroup2" for point, kind, _ in mounts)
    if unified:
        offered = (ROOT / "cgroup.controllers").read_text().split()
        return Hierarchies((ROOT,), unified=True, controllers=frozenset(offered))
    below = [(point, kind, options) for point, kind, options in mounts if point.parent == ROOT]
    folders = tuple(sorted({point for point, kind, _ in below if kind in {"cgroup", "cgroup2"}}))
    offered = {word for _, kind, options in below if kind == "cgroup" for word in options.split(",")}
    return Hierarchies(
        folders, unified=False, controllers=frozenset(offered & {*NEEDED, "devices", "freezer"})
    )


def make(path: str) -> None:
    """Make `path` (such as mla/node1) in every hierarchy, ready to hold processes."""
    found = hierarchies()
    parts = path.split("/")
    for folder in found.folders:
        for depth in range(len(parts)):
            inner = folder.joinpath(*parts[: depth + 1])
            if found.unified:
                # A controller is usable only where all parents hand it on.
                wanted = " ".join(f"+{name}" for name in (*NEEDED, "io") if name in found.controllers)
                (inner.parent / "cgroup.subtree_control").write_text(wanted)
            inner.mkdir(exist_ok=True)
            # A new cpuset of version 1 is empty, and a process may not enter an empty one.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if not found.unified and (inner / setting).exists():
                    (inner / setting).write_text((inner.parent / setting).read_text())


def enter_command(path: str, command: Sequence[str | Path]) -> list[str | Path]:
    """`command`, entering `path` first and keeping the process id: whatever it starts is in the tree, too."""
    procs = hierarchies().members / path / "cgroup.procs"
    return ["/bin/sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh", procs, *command]


def members(path: str) -> list[int]:
    """Ids of all living processes in `path` and below; none if it does not exist."""
    found: list[int] = []
    for file in (hierarchies().members / path).glob("**/cgroup.procs"):
        # A pod's cgroup may be removed between listing and reading.
        with suppress(FileNotFoundError, OSError):
            found += [int(line) for line in file.read_text().split()]
    return found


def end(path: str) -> None:
    """SIGKILL until no process is left in `path` and below, also those started meanwhile.

    Raises ServerFailed if some outlive that by 20 seconds.
    """
    deadline = time.monotonic() + KILLED_SECONDS
    while left := members(path):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ServerFailed(f"Processes {left} of cgroup {path} do not die.")
        time.sleep(0.02)


def remove(path: str) -> None:
    """Remove `path` and everything below from every hierarchy; it must have no process left.

    Raises ServerFailed if the kernel still holds it after 20 seconds.
    """
    deadline = time.monotonic() + KILLED_SECONDS
    while left := existing(path):
        for folder in left:
            for inner, _, _ in os.walk(folder, topdown=False):
                # Busy for a moment after its last process died: the next round takes it.
                with suppress(OSError):
                    Path(inner).rmdir()
        if time.monotonic() > deadline:
            raise ServerFailed(f"Cgroups {[str(folder) for folder in left]} cannot be removed.")
        time.sleep(0.02)


def existing(path: str) -> list[Path]:
    """Folders of `path` in all hierarchies, as far as they exist."""
    return [folder / path for folder in hierarchies().folders if (folder / path).is_dir()]

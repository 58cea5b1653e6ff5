"""Trees of cgroups. Every process of a cluster is in one tree, so the cluster can be killed without a list of
processes.

Here: making, reading, killing and removing trees, with cgroup version 1 (also beside version 2) and with version 2
alone. Not here: limits, which kubelet and containerd set.
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
"""Controllers that a kubelet requires."""
KILLED_SECONDS = 20.0


@dataclass(frozen=True)
class Hierarchies:
    """Mounts of cgroups on this machine."""

    folders: tuple[Path, ...]
    """Mount points below which a tree is made: one for version 2 alone, one per controller for version 1."""
    unified: bool
    """True for version 2 alone."""
    controllers: frozenset[str]

    @property
    def members(self) -> Path:
        """Hierarchy in which processes are counted. Every process is in exactly one of its cgroups."""
        return ROOT if self.unified else ROOT / "pids"


@cache
def hierarchies() -> Hierarchies:
    """Read the mounts below /sys/fs/cgroup from /proc/self/mountinfo."""
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
    """Make `path` (such as mla/node1) in every hierarchy, ready for processes."""
    found = hierarchies()
    parts = path.split("/")
    for folder in found.folders:
        for depth in range(len(parts)):
            inner = folder.joinpath(*parts[: depth + 1])
            if found.unified:
                # A controller is usable only if all parents delegate it.
                wanted = " ".join(f"+{name}" for name in (*NEEDED, "io") if name in found.controllers)
                (inner.parent / "cgroup.subtree_control").write_text(wanted)
            inner.mkdir(exist_ok=True)
            # A new cpuset of version 1 is empty, and a process may not enter an empty one.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if not found.unified and (inner / setting).exists():
                    (inner / setting).write_text((inner.parent / setting).read_text())


def enter_command(path: str, command: Sequence[str | Path]) -> list[str | Path]:
    """Return `command` with a prefix that enters `path` first and keeps the process id. All its children are in the
    tree, too.
    """
    procs = hierarchies().members / path / "cgroup.procs"
    return ["/bin/sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh", procs, *command]


def members(path: str) -> list[int]:
    """Return the ids of all living processes in `path` and below; none if it does not exist."""
    found: list[int] = []
    for file in (hierarchies().members / path).glob("**/cgroup.procs"):
        # A pod's cgroup may be removed between listing and reading.
        with suppress(FileNotFoundError, OSError):
            found += [int(line) for line in file.read_text().split()]
    return found


def end(path: str) -> None:
    """Send SIGKILL until no process is left in `path` and below, also to new processes. Raise `ServerFailed` if some
    are alive after 20 s.
    """
    deadline = time.monotonic() + KILLED_SECONDS
    while left := members(path):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"Processes {left} of cgroup {path} are alive {KILLED_SECONDS:g} s after SIGKILL."
            )
        time.sleep(0.02)


def remove(path: str) -> None:
    """Remove `path` and everything below it from every hierarchy. No process may be left in it. Raise `ServerFailed` if
    the kernel still holds it after 20 s.
    """
    deadline = time.monotonic() + KILLED_SECONDS
    while left := existing(path):
        for folder in left:
            for inner, _, _ in os.walk(folder, topdown=False):
                # Busy for a moment after its last process died: the next round removes it.
                with suppress(OSError):
                    Path(inner).rmdir()
        if time.monotonic() > deadline:
            raise ServerFailed(f"Cgroups {[str(folder) for folder in left]} cannot be removed.")
        time.sleep(0.02)


def existing(path: str) -> list[Path]:
    """Return the existing folders of `path` in all hierarchies."""
    return [folder / path for folder in hierarchies().folders if (folder / path).is_dir()]

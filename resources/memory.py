"""Memory of a process: its smallest limit, its peak, kills by the kernel, and the message of a step without enough.

The process that watches a run imports this module at its start: only the standard library. Not here: memory of a
training's workers, whose advice is about the model (`model.training.step.memory`).
"""

import errno
import os
import resource
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resources.words import in_bytes

ON_KUBERNETES = "On Kubernetes, raise `limits.memory` of `run_k8s_config` in the ConfigMap dagster-instance"
"""Remedy for the pod of a run."""
LESS_AT_ONCE = (
    "or let the step hold less: fewer rows in a partition, fewer partitions in a window or a range, fewer columns, a "
    "smaller ML_ASSETS_CHUNK_MIB"
)
"""End of a remedy, after a semicolon."""
_NAME = "OutOfMemory: "
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """Memory that a process may use, and who says so."""

    bytes: int
    where: str
    """Place of the limit, in words."""
    remedy: str
    """Begin of a sentence that raises the limit."""
    counts: Literal["VmHWM", "VmPeak"] = "VmHWM"
    """Line of `/proc/PID/status` that reaches the limit: the resident memory, or the address space."""


def memory_limit() -> MemoryLimit:
    """Return the smallest limit of this process, which its children inherit."""
    return min(_limits(), key=lambda one: one.bytes)


def _limits() -> Generator[MemoryLimit]:
    yield MemoryLimit(
        bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        where="memory of this machine",
        remedy="Use a machine with more memory",
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield MemoryLimit(bytes=soft, where="ulimit -v", remedy="Raise `ulimit -v`", counts="VmPeak")
    for file, folder in _of_cgroup("memory.max", "memory.limit_in_bytes"):
        for one in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # `max`; a folder above the container's own is not there
                yield MemoryLimit(
                    bytes=int((one / file).read_text()),
                    where=f"{file} of {one}",
                    remedy=f"Raise the limit of the container or service. {ON_KUBERNETES}",
                )


def _of_cgroup(version_2: str, version_1: str) -> Generator[tuple[str, Path]]:
    """Yield the name of a memory file and the folders of this process's cgroup that may have it."""
    with suppress(OSError):  # not Linux
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or "memory" in controllers.split(","):
                name, root = (version_2, _CGROUPS) if number == "0" else (version_1, _CGROUPS / "memory")
                # In a container, the path may be that of the machine, and the folder the container's own.
                yield name, root / path.lstrip("/")
                yield name, root


def peak_bytes(process: int | Literal["self"], limit: MemoryLimit) -> int:
    """Return the most bytes that a process held so far, as `limit` counts them; 0 if it ended, or not on Linux."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(f"{limit.counts}:"):
                return 1024 * int(line.split()[1])
    return 0


def kernel_kills() -> int:
    """Return the processes of this cgroup that the kernel killed for memory so far; of the machine if nobody says."""
    for file, folder in _of_cgroup("memory.events", "memory.oom_control"):
        with suppress(OSError, ValueError):
            return _count((folder / file).read_text())
    with suppress(OSError, ValueError):
        return _count(Path("/proc/vmstat").read_text())
    return 0


def _count(text: str) -> int:
    words = text.split()
    return int(words[words.index("oom_kill") + 1])


def out_of_memory_text(why: str, peak: int, limit: MemoryLimit) -> str:
    """Return the message for a step that does not fit. `why` says what happened; `peak` in bytes."""
    held = min(peak, limit.bytes)  # a cgroup does not count pages of libraries that another one loaded
    return (
        f"{_NAME}{why}. Its process held {in_bytes(held)} or more, and may hold {in_bytes(limit.bytes)} "
        f"({limit.where}). "
        f"{limit.remedy}; {LESS_AT_ONCE}"
    )


def explained(said: str, error: BaseException | None) -> str:
    """Return `said`, a message about `error`. If memory ran out behind it, add peak, limit and remedy.

    A worker of a pool has already added its own.
    """
    while error is not None and _NAME not in said:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            limit = memory_limit()
            return out_of_memory_text(said, peak_bytes("self", limit), limit)
        error = error.__cause__
    return said

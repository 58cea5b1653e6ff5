"""A cgroup with a limit of memory for commands and all their children."""

import os
import resource
import subprocess
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_EVERY_SECONDS = 0.2


class MemoryGroup:
    """A cgroup of version 2 or 1. Pages of files count, too; the kernel drops them when their memory is needed."""

    def __init__(self, limit_bytes: int) -> None:
        """Make the cgroup. Raises `OSError` without the right to."""
        self.limit_bytes = limit_bytes
        self.most_bytes = 0
        """Most bytes that the processes of the newest command held together, without pages of files."""
        self.cpu_seconds = 0.0
        """CPU time of the newest command and its children."""
        version_2 = (_ROOT / "cgroup.controllers").exists()
        self._counted = "anon" if version_2 else "total_rss"
        self.folder = (_ROOT if version_2 else _ROOT / "memory") / f"ml-assets-demo-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / ("memory.swap.max" if version_2 else "memory.swappiness")).write_text("0")
        (self.folder / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))

    def run(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Run `command` inside, and print its output. Raises `SystemExit` with its last words if it fails."""
        entered = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]
        done, before = threading.Event(), _cpu_of_children()
        watcher = threading.Thread(target=self._watch, args=(done,))
        watcher.start()
        try:
            ran = subprocess.run(
                entered, cwd=cwd, env=environment, capture_output=True, text=True, check=False
            )
        finally:
            done.set()
            watcher.join()
        self.cpu_seconds = _cpu_of_children() - before
        print(ran.stdout, end="", flush=True)
        if ran.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stderr[-3000:]}")

    def _watch(self, done: threading.Event) -> None:
        self.most_bytes = 0
        while not done.wait(_EVERY_SECONDS):
            words = (self.folder / "memory.stat").read_text().split()
            self.most_bytes = max(self.most_bytes, int(words[words.index(self._counted) + 1]))


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def memory_group(gigabytes: float) -> Generator[MemoryGroup]:
    """Make a cgroup whose processes may hold so many GB (10⁹ bytes) together. Raises `SystemExit`."""
    try:
        group = MemoryGroup(int(gigabytes * 1e9))
    except OSError as error:
        raise SystemExit(
            f"a limit of memory needs a cgroup below {_ROOT}: run it as root ({error})"
        ) from error
    try:
        yield group
    finally:
        group.folder.rmdir()

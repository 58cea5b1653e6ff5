"""A process beside each run, which reports on the run's page that its process died of memory.

polars aborts its process if an allocation fails, and the kernel kills a process above its memory limit. No exception
is left to report, and Dagster knows a signal at most. So `watched` starts this module as a process, which waits for the
end of the run's process, reads its peak meanwhile, and names step, partition, peak, limit and remedy. A process per
step would import everything again, for seconds each. A process around the run would have to pass on signals.

Not here: the sentence (`resources.memory`), Dagster's events (`dagster_host.dead_runs`), pods of runs, in which no
process outlives the first (`dagster_host.run_pods`).
"""

import os
import re
import select
import subprocess
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

from resources.memory import MemoryLimit, kernel_kills, memory_limit, out_of_memory_text, peak_bytes
from resources.words import in_bytes

_LOOK_SECONDS = 0.2
_LOOKS_OF_A_DEATH = 50
"""Looks, for 10 s or more, before the end of a process at which the kernel may have killed it: it gives its memory back
first. Kills before that were of other processes of its cgroup."""
_ALLOCATION_FAILED = re.compile(rb"memory allocation of (\d+) bytes failed")
"""Last words of a Rust library, such as polars."""
_NO_MEMORY = re.compile(rb"std::bad_alloc|Cannot allocate memory")
"""Last words of other libraries."""


@contextmanager
def watched(run_id: str) -> Generator[None]:
    """Watch this process while the block executes a run. Needs DAGSTER_HOME, and Linux; does nothing without."""
    if not os.environ.get("DAGSTER_HOME") or not sys.platform.startswith("linux"):
        yield
        return
    watcher = subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), run_id],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,  # Ctrl-C in a terminal ends the run, whose process then ends the watcher
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.wait()


def watch(process: int, run_id: str) -> None:
    """Wait for the end of `process`, this process's parent. Report if it died of memory."""
    limit, peak = memory_limit(), 0
    kills = deque([kernel_kills()], maxlen=_LOOKS_OF_A_DEATH)
    if os.getppid() == process:
        ended = os.pidfd_open(process)
        peak = peak_bytes(process, limit)
        while not select.select([ended], [], [], _LOOK_SECONDS)[0]:
            peak = max(peak, peak_bytes(process, limit))
            kills.append(kernel_kills())
    _report(run_id, peak, limit, is_killed=kernel_kills() > kills[0])


def _report(run_id: str, peak: int, limit: MemoryLimit, *, is_killed: bool) -> None:
    import dagster as dg

    from ml_assets.dagster_host.dead_runs import fail_from_outside, last_words, steps_in_progress, what_ran

    with dg.DagsterInstance.get() as instance:
        run = instance.get_run_by_id(run_id)
        if run is None:
            return
        how = "the kernel killed it" if is_killed else _failed_allocation(last_words(instance, run_id))
        if not how:
            return
        steps = steps_in_progress(instance, run_id)
        why = out_of_memory_text(f"{what_ran(run, steps)} ran out of memory: {how}", peak, limit)
        fail_from_outside(instance, run, steps, why)
        sys.stderr.write(f"Error: {why}\n")  # for a command, whose own process said nothing


def _failed_allocation(words: bytes) -> str:
    """Return what an allocation that failed left on standard error, in words; empty without a trace of it."""
    if found := _ALLOCATION_FAILED.search(words):
        return f"an allocation of {in_bytes(int(found[1]))} failed"
    return "an allocation failed" if _NO_MEMORY.search(words) else ""


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])

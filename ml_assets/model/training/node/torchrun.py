"""Process of a node before it imports torch; and start of all ranks of a job on this machine.

    python -m ml_assets.model.training.node.torchrun <job.json> <folder>

Ends with the exit code of the ranks (resources.job.job.ExitCode). On SIGTERM, or if the launcher at the other end of
stdin ends, the agent stops the ranks: they save and end. A forkserver imports torch once and forks the ranks, while
this process imports torch at the same time: that halves the start. So this module imports nothing heavy. Not here:
attempts (the launcher), the agent that watches the ranks (agent), several machines (pod).
"""

import hashlib
import multiprocessing
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ml_assets.model.training.telemetry.event_log import keep_events
from resources.job.job import ExitCode, TrainingJob

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # Fixes the iteration order of sets: a model that sums over a set gave other bits after each resume.
    "PYTHONHASHSEED": "0",
    # From torch 2.13 on, a worker that joins later hangs otherwise: no process publishes the address of the new round.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Deterministic matrix products on CUDA need a fixed workspace.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
# The first optimizer imports the last two, and so does a request for determinism: 3 s that each rank would spend.
_IMPORTED_ONCE = [
    "ml_assets.model.training.entry",
    "ml_assets.model.training.node.agent",
    "torch._dynamo",
    "torch._inductor.config",
]

_temporary: Path | None = None
"""Temporary folder of this process."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine among those that run a job together."""

    rank: int
    """0 … `count` - 1. The job's ranks are numbered node by node."""
    count: int
    address: str
    """Name or IP address at which node 0 listens."""
    port: int


def start_importing(*more: str) -> None:
    """Start the forkserver and its imports in the background, with these modules beside those of all trainings. From
    now on SIGTERM ends this process with `PREEMPTED`, until the agent passes it on to the ranks."""
    signal.signal(signal.SIGTERM, _end_early)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    multiprocessing.set_forkserver_preload([*_IMPORTED_ONCE, *more])
    forkserver.ensure_running()


def use_temporary_folder(job_folder: Path) -> None:
    """Put all temporary files of this process and its children into the job's own folder, and delete it at the end.

    torch and multiprocessing leave files behind if a rank or an agent is killed; the next attempt removes them. The
    folder is below the system's temporary folder, since sockets need a short path.
    """
    digest = hashlib.sha256(os.fsencode(job_folder.resolve())).hexdigest()
    global _temporary
    _temporary = Path(tempfile.gettempdir()) / f"train-{digest[:8]}"
    _remove_temporary_files()
    _temporary.mkdir(mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(_temporary)
    # Runs after multiprocessing's cleanup (priority -100), which fails if its own folder in there is gone.
    Finalize(None, _remove_temporary_files, exitpriority=-200)


def _remove_temporary_files() -> None:
    if _temporary is not None:
        shutil.rmtree(_temporary, ignore_errors=True)


def end(code: int) -> NoReturn:
    """End this process without cleanup. Unloading torch takes a second, in which another attempt would wait."""
    _remove_temporary_files()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_early(_signal: int, _frame: FrameType | None) -> None:
    """End at once: before the agent handles signals, there is nothing to save.

    Not `sys.exit`: Python swallows its exception inside a finalizer that runs during an import, and the signal is lost.
    """
    _remove_temporary_files()
    os._exit(ExitCode.PREEMPTED)


def main(job_file: str, folder: str) -> int:
    """Run the ranks of the job in `job_file`, which lies in `folder`; return the exit code of the job."""
    use_temporary_folder(Path(folder))
    start_importing()
    _end_with_stdin()
    job = TrainingJob.from_json(Path(job_file).read_text())
    keep_events(Path(folder))
    from ml_assets.model.training.node.agent import run_ranks  # imports torch, beside the forkserver

    return run_ranks(job, job.settings.workers, Path(folder))


def _end_with_stdin() -> None:
    """Treat the end of stdin like SIGTERM if stdin is a pipe: the launcher at the other end is gone."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end(main(*sys.argv[1:]))

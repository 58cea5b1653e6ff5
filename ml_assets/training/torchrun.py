"""Starting the ranks of a job on this machine: torchrun's own agent, with its exit code kept.

    python -m ml_assets.training.torchrun <job.json> <folder>

The command line tool `torchrun` ends with 1 whatever its workers' code was; called as a library the agent
hands the code over. Ranks are forked from one process that has torch imported, while this one imports it
too: half the start. Not here: attempts (the launcher), what a rank does (entry).

Ends with the exit code of the ranks (resources.launcher.job.ExitCode). SIGTERM, or the end of whoever holds
the other end of stdin, is passed on to the ranks: they save and end.
"""

import logging
import multiprocessing
import os
import signal
import stat
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType

from resources.launcher.job import ExitCode, TrainingJob

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # From 2.13 on a worker that joins later hangs otherwise: nobody writes the address for the new round.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Deterministic matrix products on CUDA need a fixed workspace.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
# The last two are imported by the first optimizer and by asking for determinism: 3 s that ranks would all
# spend.
_IMPORTED_ONCE = ["ml_assets.training.entry", "torch._dynamo", "torch._inductor.config"]


def main(job_file: str, folder: str) -> int:
    """Run the ranks of the job in `job_file`; the exit code of the job."""
    signal.signal(signal.SIGTERM, _end_early)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    multiprocessing.set_forkserver_preload(_IMPORTED_ONCE)
    forkserver.ensure_running()
    _end_with_stdin()
    job = TrainingJob.from_json(Path(job_file).read_text())
    return _run_agent(job, job_file, folder)


def _run_agent(job: TrainingJob, job_file: str, folder: str) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from ml_assets.training import entry

    _format_torch_logs_plainly()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.settings.workers,
        run_id=job.fingerprint[:12],
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,  # the launcher decides about attempts: it knows which codes are final
        monitor_interval=0.1,
        start_method="forkserver",
    )
    try:
        elastic_launch(config, entry.main)(job_file, folder)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code >= 0 else 128 - code  # as a shell says it: 137 for SIGKILL
    except SignalException:  # the ranks got it, and time to save
        return ExitCode.PREEMPTED
    return ExitCode.DONE


def _format_torch_logs_plainly() -> None:
    """Torch's own formatter imports its compiler to format a first line: seconds, just when a rank died."""
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "torch":
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(plain)


def _end_early(_signal: int, _frame: FrameType | None) -> None:
    """Before the agent takes the signal over there is nothing to save."""
    sys.exit(ExitCode.PREEMPTED)


def _end_with_stdin() -> None:
    """Treat the end of stdin like SIGTERM, where stdin is a pipe: the launcher at its other end is gone."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Start of all ranks of a job on this machine.

    python -m ml_assets.model.training.node.torchrun <job.json> <folder>

Ends with the exit code of the ranks (resources.job.job.ExitCode). On SIGTERM, or if the launcher at the other end of
stdin ends, the agent stops the ranks: they save and end. Not here: attempts (the launcher), the agent that watches the
ranks (agent), several machines (pod).
"""

import os
import signal
import stat
import sys
import threading
from pathlib import Path

from ml_assets.model.training.node.agent import end, run_ranks, start_importing, use_temporary_folder
from ml_assets.model.training.telemetry.event_log import keep_events
from resources.job.job import TrainingJob


def main(job_file: str, folder: str) -> int:
    """Run the ranks of the job in `job_file`; return the exit code of the job."""
    use_temporary_folder(Path(folder))
    start_importing()
    _end_with_stdin()
    job = TrainingJob.from_json(Path(job_file).read_text())
    keep_events(Path(folder))
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

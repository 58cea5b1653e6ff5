"""Several machines in one, for the drill that loses one: an agent and its ranks each, which share nothing but files.

    python -m ml_assets.drills.machines <job.json> <folder>

A launcher's command. Machines that were lost stay lost: the next attempt uses those that are left, with fewer ranks.
Not here: attempts (the launcher), the agent (ml_assets.training.agent).
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ml_assets.training.agent import Node, end, run_ranks, start_importing, use_temporary_folder
from ml_assets.training.events import keep_events
from ml_assets.training.stop import end_with_parent
from resources.launcher.job import TrainingJob

COMMAND = (sys.executable, "-m", "ml_assets.drills.machines")
RANKS = 2
"""Of each machine."""
_LEFT = "machines.json"


def set_up(folder: Path, machines: int) -> None:
    """Before a job is launched in `folder`: it has machine-0, machine-1, …"""
    _write(folder, {f"machine-{number}": 0 for number in range(machines)})


def main(job_file: str, folder: str) -> int:
    """Run an attempt on the machines that are left; its exit code."""
    place = Path(folder)
    names = list(_read(place))
    job = TrainingJob.from_json(Path(job_file).read_text())
    job = replace(job, settings=replace(job.settings, workers=RANKS * len(names)))
    attempt_file = place / "attempt.json"
    attempt_file.write_text(job.to_json())
    port = _free_port()
    running = {
        name: subprocess.Popen(
            [*COMMAND, str(attempt_file), folder, name, str(rank), str(len(names)), str(port)],
            process_group=0,
        )
        for rank, name in enumerate(names)
    }

    def stop_all(_signal: int, _frame: FrameType | None) -> None:
        for process in running.values():
            process.terminate()

    signal.signal(signal.SIGTERM, stop_all)
    _write(place, {name: process.pid for name, process in running.items()})
    codes = {name: process.wait() for name, process in running.items()}
    left = {name: 0 for name, code in codes.items() if code != -signal.SIGKILL}
    _write(place, left)
    return max((codes[name] for name in left), default=1)


def machine(job_file: str, folder: str, name: str, rank: str, count: str, port: str) -> int:
    """One machine of an attempt."""
    end_with_parent(signal.SIGTERM)
    place = Path(folder)
    os.environ["TMPDIR"] = str(place.parent)  # what a lost machine leaves goes with the drill
    use_temporary_folder(place / name)
    start_importing()
    keep_events(place)
    settings = TrainingJob.from_json(Path(job_file).read_text()).settings
    node = Node(rank=int(rank), count=int(count), address="127.0.0.1", port=int(port))
    return run_ranks(f"drill-{port}", RANKS, (job_file, folder), settings.hang_seconds, node)


def kill_machine(folder: Path, name: str) -> None:
    """End all processes of a machine at once, as a loss of power does."""
    with suppress(ProcessLookupError):
        os.killpg(_read(folder)[name], signal.SIGKILL)


def _read(folder: Path) -> dict[str, int]:
    """Name → process of each machine that is left; the process leads a group with all that runs there."""
    return json.loads((folder / _LEFT).read_text())


def _write(folder: Path, machines: dict[str, int]) -> None:
    (folder / _LEFT).write_text(json.dumps(machines))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(main(*sys.argv[1:]))
    end(machine(*sys.argv[1:]))

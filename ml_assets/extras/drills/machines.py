"""Several machines simulated on one, for the drill that loses one: an agent and its ranks each, which share only files.

    python -m ml_assets.extras.drills.machines <job.json> <folder>

This is the command of a launcher. An attempt uses the machines that are present, with fewer ranks after a loss. When a
machine comes back, the others are asked to save and to end, and the next attempt uses all machines. Not here: attempts
(the launcher), the agent (ml_assets.model.training.node.agent).
"""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ml_assets.model.training.node.torchrun import Node, end, start_importing, use_temporary_folder
from ml_assets.model.training.process.stop import end_with_parent
from ml_assets.model.training.telemetry.event_log import keep_events
from resources.job.job import TrainingJob

COMMAND = (sys.executable, "-m", "ml_assets.extras.drills.machines")
RANKS = 2
"""Ranks of each machine."""
_LOOK_SECONDS = 0.1


def set_up(folder: Path, machines: int) -> None:
    """Create machine-0, machine-1, … in `folder`, before a job is launched there."""
    for number in range(machines):
        bring_machine(folder, f"machine-{number}")


def bring_machine(folder: Path, name: str) -> None:
    """Make a machine present, for the first time or again."""
    _file(folder, name).parent.mkdir(exist_ok=True)
    _file(folder, name).touch()


def kill_machine(folder: Path, name: str) -> None:
    """Kill all processes of a machine at once, as a power failure does."""
    pid = int(_file(folder, name).read_text())
    _file(folder, name).unlink()
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main(job_file: str, folder: str) -> int:
    """Run an attempt on the machines that are present; return its exit code."""
    place = Path(folder)
    names = _machines(place)
    port = _free_port()
    running = {
        name: subprocess.Popen(
            [*COMMAND, job_file, folder, name, str(rank), str(len(names)), str(port)], process_group=0
        )
        for rank, name in enumerate(names)
    }

    def stop_all(_signal: int = 0, _frame: FrameType | None = None) -> None:
        for process in running.values():
            process.terminate()

    signal.signal(signal.SIGTERM, stop_all)
    for name, process in running.items():
        _file(place, name).write_text(str(process.pid))
    is_stopped = False
    while any(process.poll() is None for process in running.values()):
        time.sleep(_LOOK_SECONDS)
        if not is_stopped and set(_machines(place)) - set(names):
            stop_all()
            is_stopped = True
    left = [process.returncode for process in running.values() if process.returncode != -signal.SIGKILL]
    return max(left, default=1)


def machine(job_file: str, folder: str, name: str, rank: str, count: str, port: str) -> int:
    """Run one machine of an attempt; return its exit code."""
    end_with_parent(signal.SIGTERM)
    place = Path(folder)
    os.environ["TMPDIR"] = str(place.parent)  # files of a lost machine are removed with the drill
    use_temporary_folder(place / name)
    start_importing()
    keep_events(place)
    job = TrainingJob.from_json(Path(job_file).read_text())
    from ml_assets.model.training.node.agent import Nodes, run_ranks  # imports torch, beside the forkserver

    nodes = Nodes(Node(rank=int(rank), count=int(count), address="127.0.0.1", port=int(port)))
    return run_ranks(job, RANKS, place, node=nodes.node)


def _machines(folder: Path) -> list[str]:
    """Return the names of the machines that are present."""
    return sorted(path.name for path in _file(folder, "any").parent.iterdir())


def _file(folder: Path, name: str) -> Path:
    """Return the file that marks a machine as present; it holds the id of the machine's process group."""
    return folder / "machines" / name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(main(*sys.argv[1:]))
    end(machine(*sys.argv[1:]))

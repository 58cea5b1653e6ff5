"""A training that is killed again and again: for `make test-drills` and `make test-chaos`."""

import dataclasses
import itertools
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ml_assets.extras.drills.fault_injector import Timeline, send
from resources.job.job import TrainingJob, TrainingResult

VICTIMS = ("rank 0", "rank 1", "agent")
WORLDS = (3, 1, 4, 2)
"""Numbers of workers after each death of the launcher, in turn."""

_LAUNCH = """
import sys
from pathlib import Path
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher
folder = Path(sys.argv[1])
job = TrainingJob.from_json((folder / "asked.json").read_text())
LocalLauncher().run(job, folder, lambda event: None, lambda line: None)
"""


@dataclass(frozen=True)
class Kill:
    """Killed process, and the training's progress by the events on disk."""

    victim: str
    step: int


def train_through_kills(
    job: TrainingJob, folder: Path, seed: int, kills: int
) -> tuple[TrainingResult, list[Kill]]:
    """Train `job` in `folder` and kill `kills` of its processes by SIGKILL. `seed` draws the processes and the times. A
    killed launcher starts again with another number of workers.

    The job needs a budget of more attempts than `kills`. Return the result, and each kill.
    """
    draw = random.Random(seed)
    victims = [
        "launcher",
        *draw.sample(VICTIMS, len(VICTIMS)),
    ]  # in turn, so that a few rounds meet all of them
    worlds = itertools.cycle(WORLDS)
    done: list[Kill] = []
    launcher = _start_launcher(folder, job, next(worlds))
    try:
        for i in range(kills):
            victim = victims[i % len(victims)]
            _wait_for_moment(folder, launcher, draw)
            if launcher.poll() is not None:
                break  # finished before the last kills came
            step = Timeline.of(folder).last_step
            if _kill(victim, launcher, folder):
                done.append(Kill(victim, step))
            if victim == "launcher":
                launcher.wait()
                launcher = _start_launcher(folder, job, next(worlds))
        if launcher.wait(timeout=300):
            raise AssertionError(f"the launcher ended with {launcher.returncode} after {done}")
    finally:
        launcher.kill()
        launcher.wait()
    return TrainingResult.read(folder / "result.json"), done


def _start_launcher(folder: Path, job: TrainingJob, workers: int) -> subprocess.Popen[bytes]:
    asked = dataclasses.replace(job, settings=dataclasses.replace(job.settings, workers=workers))
    (folder / "asked.json").write_text(asked.to_json())
    return subprocess.Popen([sys.executable, "-c", _LAUNCH, str(folder)])


def _wait_for_moment(folder: Path, launcher: subprocess.Popen[bytes], draw: random.Random) -> None:
    """Wait some seconds, on most machines while the ranks start, or until some events later."""
    events, deadline = len(Timeline.of(folder).events), time.monotonic() + 120
    further = draw.choice((0, draw.randrange(1, 40), draw.randrange(1, 40)))
    if not further:
        time.sleep(draw.uniform(0.1, 3))
    while len(Timeline.of(folder).events) < events + further and time.monotonic() < deadline:
        if launcher.poll() is not None:
            return
        time.sleep(0.01)


def _kill(victim: str, launcher: subprocess.Popen[bytes], folder: Path) -> bool:
    """Kill the process; return False if there was none to kill."""
    if victim == "launcher":
        launcher.kill()
        return True
    agents = _children(launcher.pid)
    if victim == "agent":
        return send(signal.SIGKILL, agents) > 0
    rank = int(victim.removeprefix("rank "))
    of_this_agent = {pid for agent in agents for server in _children(agent) for pid in _children(server)}
    ranks = Timeline.of(folder).pids[rank : rank + 1]
    return send(signal.SIGKILL, [pid for pid in ranks if pid in of_this_agent]) > 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []

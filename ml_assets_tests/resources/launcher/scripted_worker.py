"""A worker command that does what the job's `plan` says: one word per attempt, without training anything.

`done`, `late` (done, and then ends with 1), an exit code, `kill` (itself), `wait` (until SIGTERM, then 75), `deaf`
(ignores SIGTERM, has a child), `trains` (an event of a step, then 75), `slow` (an event each 50 ms for a while, then
done), `fails PLACE` (reported by two machines), `orphan` (dies of SIGKILL, leaving a talking child).
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from ml_assets.model.training.telemetry.event_log import emit, keep_events
from ml_assets_tests.resources.launcher.scripted_jobs import CONTENT, untrained_result
from resources.job.job import TrainingJob


def main(job_file: str, folder: str) -> int:
    """Do the next word of the plan."""
    job, place = TrainingJob.from_json(Path(job_file).read_text()), Path(folder)
    keep_events(place)
    attempts = place / "attempts"
    attempt = int(attempts.read_text()) + 1 if attempts.exists() else 1
    attempts.write_text(str(attempt))
    word = job.hyperparameters["plan"][attempt - 1]
    emit("started", attempt, pids=[os.getpid()])
    print(f"attempt {attempt} does {word}", flush=True)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        wait_for_end_of_stdin()
    if word == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        emit("metrics", attempt, pid=child.pid)
        time.sleep(600)
    if word == "orphan":
        child = subprocess.Popen([sys.executable, "-uc", "while True: print('here')"])
        emit("metrics", attempt, pid=child.pid)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "trains":
        emit("metrics", attempt, loss=1.0)
        return 75
    if word == "slow":
        for step in range(20):
            emit("metrics", step, loss=1.0)
            time.sleep(0.05)
    if word.startswith("fails "):
        for _ in range(2):
            emit("ended", 0, code=1, cause="an error", place=word.removeprefix("fails "))
        return 1
    if word in ("done", "late", "slow"):
        finish(job, place, attempt)
        return int(word == "late")
    emit("failed", attempt, error="Some", message=f"the reason of attempt {attempt}")
    return int(word)


def wait_for_end_of_stdin() -> None:
    """The launcher closes it, or is gone. Never blocked for long: a signal that comes just before a read that
    blocks would be handled only after it."""
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        continue
    sys.exit(75)


def finish(job: TrainingJob, folder: Path, attempt: int) -> None:
    """Leave a result."""
    weights = folder / "model.safetensors"
    weights.write_bytes(CONTENT)
    result = untrained_result(job.fingerprint, str(weights), attempt)
    (folder / "result.json").write_text(result.to_json())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

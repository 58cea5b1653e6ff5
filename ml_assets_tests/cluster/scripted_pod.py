"""Work of these tests' pods instead of training: the words of `PLAN`, one for each attempt.

`PLAN` holds the attempts, separated by spaces; in each the pods, separated by `|` (the last word is for all that
follow). `done`; a number (exit code, after saying why); `kill` (as by SIGKILL); `hungry` (takes memory for ever);
`greedy` (writes 200 MB to its scratch); `steps` (an event each 50 ms, from the stored step to `STEPS`, which it tells
where `TOLD` is set, then done; stores its step and ends with 75 on SIGTERM); `saves` (the same, and a checkpoint after
every 20 steps); `deaf` (ignores SIGTERM); `lines` (says
`STEPS` numbered lines, then done).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from ml_assets_tests.resources.launcher.scripted_jobs import CONTENT, untrained_result
from resources.artifacts import Artifacts, artifacts_of
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob

STEPPING = ("steps", "saves")
_ASKED: list[int] = []
"""Signals that asked this pod to save and end."""


def main() -> int:
    """Do this pod's word."""
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    # A launcher numbers its attempts; a JobSet counts its restarts.
    attempt = int(os.environ.get("TRAINING_ATTEMPT") or int(os.environ["TRAINING_RESTARTS"]) + 1)
    words = os.environ["PLAN"].split()[attempt - 1].split("|")
    word = words[min(index, len(words) - 1)]
    if word in STEPPING:  # before anybody can see this pod run
        signal.signal(signal.SIGTERM, _note if index == 0 else lambda *_: os._exit(75))
    print(f"attempt {attempt} does {word}", flush=True)
    if word.isdecimal():
        emit("failed", 0, error="Some", message=f"the reason of attempt {attempt}")
        await_first(index, attempt)
        return int(word)
    if word == "kill":  # as its parent would tell it: the first process of a container is deaf to itself
        return 128 + signal.SIGKILL
    if word == "hungry":
        taken: list[bytearray] = []
        while True:
            taken.append(bytearray(os.urandom(1 << 20) * 16))
    if word == "greedy":
        Path(os.environ["TRAINING_SCRATCH"], "shards").write_bytes(bytes(200_000_000))
        time.sleep(600)
    if word == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        emit("started", 0)
        time.sleep(600)
    if word == "lines":
        for number in range(int(os.environ["STEPS"])):
            print(f"line {number:07} {'.' * 80}", flush=True)
            if number % 100 == 0:  # what is rotated before anybody reads it nobody can read
                time.sleep(0.02)
    if index == 0 and word in STEPPING:
        return steps(attempt, every=20 if word == "saves" else 0)
    if index == 0:
        finish(attempt)
    elif word in STEPPING:
        wait()
    return 0


def await_first(index: int, attempt: int) -> None:
    """Wait until pod 0 fails, as a rank does that fails because it lost another."""
    home, name = stored()
    failed = f"failed-{attempt}"
    if index == 0:
        (home.folder(name) / failed).write_text("")
        home.push(name, [failed])
    while not home.exists(name, failed):
        time.sleep(0.2)


def _note(number: int, _: object) -> None:
    _ASKED.append(number)


def steps(attempt: int, every: int) -> int:
    """Count on from where the last attempt was. Save after `every` so many steps; 0: only if asked to end."""
    home, name = stored()

    def save(step: int) -> None:
        (home.folder(name) / "step.json").write_text(json.dumps(step))
        home.push(name, ["step.json"])

    first = 0
    if home.exists(name, "step.json"):
        first = json.loads((home.pull(name, ["step.json"]) / "step.json").read_text())
    emit("started", first, steps=int(os.environ["STEPS"]) if "TOLD" in os.environ else 0)
    for step in range(first, int(os.environ["STEPS"])):
        if _ASKED:
            save(step)
            return 75
        if every and step % every == every - 1:
            save(step)
            emit("checkpoint", step, checkpoint_duration_ms=1.0)
        emit("metrics", step, loss=1.0)
        time.sleep(0.05)
    home.folder(name).joinpath("over").write_text("")
    home.push(name, ["over"])
    finish(attempt)
    return 0


def wait() -> None:
    """Wait until pod 0 is done. SIGTERM ends the wait with exit code 75."""
    home, name = stored()
    while not home.exists(name, "over"):
        time.sleep(0.5)


def finish(attempt: int) -> None:
    """Leave a result, as rank 0 does."""
    home, name = stored()
    folder = home.pull(name, ["job.json"])
    job = TrainingJob.from_json((folder / "job.json").read_text())
    weights = folder / "model.safetensors"
    weights.write_bytes(CONTENT)
    result = untrained_result(job.fingerprint, str(weights), attempt)
    (folder / "result.json").write_text(result.to_json())
    home.push(name, ["model.safetensors", "result.json"], last="result.json")
    emit("finished", 1)


def stored() -> tuple[Artifacts, str]:
    """The artifacts, and the job's folder among them."""
    root, _, rest = os.environ["TRAINING_FOLDER"].rpartition("/training/")
    scratch = Path(os.environ["TRAINING_SCRATCH"])
    return artifacts_of(root, scratch, os.environ["AWS_ENDPOINT_URL"]), f"training/{rest}"


def emit(kind: str, step: int, **values: object) -> None:
    """One event on stdout."""
    line = TrainingEvent(kind=kind, step=step, time=time.time(), values=values).to_line()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

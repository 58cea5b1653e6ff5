"""Rank of a job that names a script: runs the script as `python -m` does, within the frame of a rank.

Exceptions map to exit codes, the rank writes heartbeats, and it ends with its agent. A script's own signal handlers
stay in force. Here: running the script. Not here: the functions it may call (api).
"""

import importlib.util
import os
import runpy
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from ml_assets.model.training.attempt.exit_code import exit_code_of, leave
from ml_assets.model.training.attempt.same_code import refuse_other_code
from ml_assets.model.training.process.group import is_lost_peer
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import end_with_parent
from ml_assets.model.training.script.api import FOLDER, JOB, MIRROR, PROCESS, Training, attach, submitted
from ml_assets.model.training.script.meeting import find_meeting
from ml_assets.model.training.step.memory import advising_script
from ml_assets.model.training.telemetry.event_log import keep_events
from ml_assets.model.training.telemetry.machine import watching_machine
from resources.job.errors import BadConfiguration, TrainingFailed
from resources.job.events import JOB as JOB_FILE
from resources.job.job import ExitCode

_USAGE = 2
"""Exit code of argparse and similar libraries for arguments that they refuse."""


def main(folder: str, mirror: str) -> None:
    """Run the script of the job of `folder` as a rank of the agent; see `entry.main`."""
    end_with_parent()
    keep_events(Path(folder))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)  # pyright: ignore - its output is the log, line by line
    find_meeting()
    os.environ |= {
        JOB: str(Path(folder) / JOB_FILE),
        FOLDER: folder,
        MIRROR: mirror,
        PROCESS: str(os.getpid()),
    }
    with Heartbeat(int(os.environ["LOCAL_RANK"])) as heartbeat:
        code = exit_code_of(
            lambda: _run_submitted(heartbeat, is_pod=bool(mirror)),
            Path(folder),
            lambda: heartbeat.newest_step,
        )
    leave(code)


def _run_submitted(heartbeat: Heartbeat, *, is_pod: bool) -> int:
    refuse_other_code(submitted()[0], is_pod=is_pod)
    return run_script(heartbeat)


def run_script(heartbeat: Heartbeat) -> int:
    """Run the script of the job that `attach` finds; return its exit code. `heartbeat` shows the script's progress.

    Raises `BadConfiguration` if the script cannot run or hands in no model, `OutOfMemory` with advice.
    """
    training = attach()
    if training.is_finished:
        return ExitCode.DONE
    script = training.job.script
    arguments = [*map(str, training.job.arguments), *arguments_of(training.hyperparameters)]
    training.heartbeat = heartbeat
    heartbeat.newest_step = training.resumed_step
    heartbeat.begin()
    with (
        _naming_rank(training),
        watching_machine(training.folder, lambda: training.step),
        advising_script(training.rank, training.world_size),
    ):
        code = _run_module(script, arguments)
    if training.meeting is not None:
        training.meeting.leave()
    if code == ExitCode.DONE and training.rank == 0 and not training.is_finished:
        raise BadConfiguration(
            f"{script} ended without handing in a model: call training.finish(model, …) on rank 0"
        )
    return code


@contextmanager
def _naming_rank(training: Training) -> Generator[None]:
    """Name the rank in the final failures of a script, if there are several ranks."""
    try:
        yield
    except TrainingFailed as error:
        name = f"rank {training.rank} of {training.world_size}"
        if training.world_size == 1 or str(error).startswith(name):
            raise
        raise type(error)(f"{name}: {error}") from error


def _run_module(script: str, arguments: list[str]) -> int:
    sys.argv = [script, *arguments]
    try:
        if (spec := importlib.util.find_spec(script)) is not None and spec.origin is not None:
            sys.path.insert(0, str(Path(spec.origin).parent))  # modules beside it, as for `torchrun train.py`
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    except (ImportError, SyntaxError) as error:
        raise BadConfiguration(f"{script} cannot be run: {type(error).__name__}: {error}") from error
    except SystemExit as end:
        if end.code == _USAGE:
            raise BadConfiguration(
                f"{script} refused its arguments, {' '.join(arguments)}: the log has its message. The arguments are "
                "the pipeline's `model.arguments` and `model.hyperparameters`"
            ) from end
        if is_lost_peer(end.__context__):  # accelerate and others exit this way after a lost peer
            return ExitCode.PEER_LOST
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or ExitCode.DONE
    return ExitCode.DONE


def arguments_of(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the command line of a script: `--name=value`, `--name` for true, nothing for false and null, `--name a b`
    for a list. Raises `BadConfiguration` for values that a command line cannot express."""
    arguments: list[str] = []
    for name, value in hyperparameters.items():
        option = f"--{name}"
        if value is True:
            arguments.append(option)
        elif isinstance(value, list):
            arguments += [option, *map(str, cast("list[Any]", value))]
        elif isinstance(value, dict):
            raise BadConfiguration(
                f"hyperparameter {name} is a mapping, which a command line cannot express: flatten it"
            )
        elif value is not None and value is not False:
            arguments.append(f"{option}={value}")
    return arguments

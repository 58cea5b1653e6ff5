"""Entry point of a rank, from its first line to its exit code.

Here: the frame around the loop, and the files of a finished job: `model.safetensors` with the best weights, then
`result.json`. Not here: starting ranks (node.agent), the loop itself (loop).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.model.training.attempt.attempts import (
    begin_attempt,
    read_attempts,
    wait_until_alone,
    worker_seconds,
)
from ml_assets.model.training.attempt.exit_code import exit_code_of, leave
from ml_assets.model.training.checkpoint.mirror import Mirror
from ml_assets.model.training.data.rowlog import RowLog, count_rows
from ml_assets.model.training.loop import fit
from ml_assets.model.training.measured import Exported
from ml_assets.model.training.process.group import Group, join_group
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest, end_with_parent
from ml_assets.model.training.run import Run, prepare
from ml_assets.model.training.step.memory import advising
from ml_assets.model.training.telemetry.event_log import emit, keep_events
from ml_assets.model.training.telemetry.machine import watching_machine
from ml_assets.model.training.telemetry.prometheus import tell_beginning
from resources.files import write_whole
from resources.job.events import EVENTS, JOB, RESULT, WEIGHTS
from resources.job.job import ExitCode, TrainingJob, TrainingResult

log = logging.getLogger(__name__)


def write_result(run: Run, exported: Exported) -> TrainingResult:
    """Write both files, the result last: if it exists, so does every file that it names."""
    progress = run.progress
    weights = run.folder / WEIGHTS
    write_whole(weights, lambda path: save_file(dict(exported.weights), path))
    attempts = read_attempts(run.folder)
    result = TrainingResult(
        fingerprint=run.job.fingerprint,
        weights=str(weights),
        weights_sha256=file_sha256(weights),
        best_step=progress.best_step,
        best_validation_loss=exported.loss,
        compared_units=exported.compared_units,
        compared_loss=exported.compared_loss,
        steps=progress.step,
        epochs=progress.step // run.order.steps_per_epoch,
        world_size=run.group.world_size,
        rows_per_second=progress.step * run.train.rows / run.order.steps_per_epoch / progress.seconds,
        seconds=progress.seconds,
        attempts=len(attempts),
        resumed_from_steps=tuple(attempt.from_step for attempt in attempts[1:]),
        worker_seconds=worker_seconds(run.folder),
    )
    write_whole(run.folder / RESULT, lambda path: path.write_text(result.to_json()))
    return result


def store_result(run: Run) -> None:
    """Push the files of `write_result` to the mirror, the result last. Raises `StorageFailed`."""
    if run.mirror is not None:
        run.mirror.push([WEIGHTS, EVENTS], last=RESULT)


def main(folder: str, mirror: str) -> None:
    """Train the job of `folder` as a rank of the agent. After a failure, ends the process with an `ExitCode`, or with 1
    if another attempt may succeed.

    `mirror` is the address of the folder's durable copy, if the folder is lost with this machine.
    """
    began = time.time()
    end_with_parent()
    stop = StopRequest()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    keep_events(Path(folder))
    with Heartbeat(int(os.environ["LOCAL_RANK"])) as heartbeat:
        code = exit_code_of(
            lambda: _join(Path(folder), mirror, stop, heartbeat, began),
            Path(folder),
            lambda: heartbeat.newest_step,
        )
    leave(code, stop)


def _join(folder: Path, mirror: str, stop: StopRequest, heartbeat: Heartbeat, began: float) -> int:
    job = TrainingJob.from_json((folder / JOB).read_text())
    with (
        join_group(job.settings, folder_each_node=bool(mirror)) as group,
        advising(job.settings, group),
    ):
        _train(job, folder, Mirror(mirror, folder) if mirror else None, group, stop, heartbeat, began)
    return ExitCode.DONE


def _train(
    job: TrainingJob,
    folder: Path,
    mirror: Mirror | None,
    group: Group,
    stop: StopRequest,
    heartbeat: Heartbeat,
    began: float,
) -> None:
    run = prepare(job, folder, group, mirror, heartbeat.bounded)
    if group.is_first:
        wait_until_alone(folder)
    run.resume()
    heartbeat.newest_step = run.progress.step
    attempt = group.from_first(run.io_group.all_succeed(lambda: _begin_attempt(run, heartbeat)))
    pids = group.gather(os.getpid())
    begins = [milliseconds / 1000 for milliseconds in group.gather(round(began * 1000))]
    if group.is_first:
        tell_beginning(
            job,
            attempt,
            run.progress.step,
            world_size=group.world_size,
            pids=pids,
            ranks_began=begins,
            steps=run.total_steps,
            device=group.device.type,
            is_stored=mirror is not None,
        )
    rows = RowLog(folder, attempt, group.rank)
    with watching_machine(folder, lambda: run.progress.step):
        exported = fit(run, rows, stop, heartbeat)
    run.store_rows(rows)  # rows since the last checkpoint
    run.io_group.all_succeed(lambda: _finish(run, exported))


def _begin_attempt(run: Run, heartbeat: Heartbeat) -> int:
    if not run.group.is_first:
        return 0
    attempt, recovered = begin_attempt(run.folder, run.progress.step, run.group.world_size)
    run.checkpoints.begin(attempt)
    if recovered is not None:
        heartbeat.on_first_step(recovered)
    return attempt.number


def _finish(run: Run, exported: Exported) -> None:
    if run.group.is_first:
        counted = _count_rows(run)
        result = write_result(run, exported)
        store_result(run)
        emit(
            "finished",
            result.steps,
            best_step=result.best_step,
            best_validation_loss=result.best_validation_loss,
            seconds=result.seconds,
            measured_seconds=exported.seconds,
            **counted,
        )


def _count_rows(run: Run) -> dict[str, Any]:
    """Count the rows that resumes repeated or lost; empty without a resume."""
    if len(read_attempts(run.folder)) < 2:
        return {}
    if (mirror := run.mirror) is not None:  # logs of ranks on other machines
        mirror.pull([file for file in sorted(mirror.files()) if file.startswith("rows/")])
    count = count_rows(run.folder, run.train.rows, run.order.steps_per_epoch)
    if count.lost or any(count.repeated.values()):
        log.error(
            "a resume skipped or repeated rows: %s. Report this bug with the folder rows/ of the training",
            count,
        )
    return {"rows_repeated": count.repeated, "rows_lost": count.lost}

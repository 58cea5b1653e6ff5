"""API for a script that keeps its own loop: data, a checkpoint folder, metrics, a place for its model.

    from ml_assets.model.training.script import attach

    training = attach()
    numeric, category, label = training.tensors("train")
    ...
    training.log(step, loss=0.3)
    with training.checkpoint(step) as folder:
        torch.save(state, folder / "state.pt")
    training.finish(model, steps=step, validation_loss=0.4)

Here: these functions. Not here: running the script as a rank (script_rank), the files of its model (script_model), the
platform's own loop (training.entry, training.loop).
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ml_assets.data.snapshots.split_reader import (
    InputSpec,
    Rows,
    ShardChanged,
    Snapshot,
    file_sha256,
    open_snapshot,
)
from ml_assets.model.training.attempt.attempts import (
    begin_attempt,
    one_at_a_time,
    read_attempts,
    seconds_trained,
    wait_until_alone,
    worker_seconds,
)
from ml_assets.model.training.checkpoint.checkpoints import Checkpoints, checkpoints_of, folder_of
from ml_assets.model.training.checkpoint.mirror import Mirror
from ml_assets.model.training.checkpoint.parts import INDEX
from ml_assets.model.training.data.preprocess import with_dropped
from ml_assets.model.training.process.group import keep_connections
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.script.data import (
    Example,
    ReadableSplit,
    blobs_of,
    example_of,
    matrix_of,
    rows_of,
    tensors_of,
    weights_of,
)
from ml_assets.model.training.script.meeting import Meeting
from ml_assets.model.training.script.script_model import check_model, write_model
from ml_assets.model.training.telemetry.event_log import emit, keep_events
from ml_assets.model.training.telemetry.prometheus import tell_beginning
from resources.files import sync, write_whole
from resources.job.errors import BadConfiguration, Diverged, InputChanged
from resources.job.events import EVENTS, RESULT
from resources.job.job import TrainingJob, TrainingResult

JOB, FOLDER, MIRROR = "TRAINING_JOB", "TRAINING_JOB_FOLDER", "TRAINING_JOB_MIRROR"
"""Environment variables of a script: file of the job, its folder, address of the folder's durable copy if there is one.
"""
PROCESS = "TRAINING_JOBPROCESS"
"""Id of the rank's process: data loading processes may import the script again and call `attach`."""
_LOSSES = ("loss", "validation_loss")
_PIECE = 1 << 20
"""Bytes that are sent to a store at once."""


def submitted() -> tuple[TrainingJob, Path]:
    """Return the job of which this process is a rank, and its folder, as the environment names them.

    Raises `BadConfiguration` if no launcher started this process.
    """
    try:
        job_file, folder = Path(os.environ[JOB]), Path(os.environ[FOLDER])
    except KeyError as error:
        raise BadConfiguration(
            f"{error.args[0]} is not set: a pipeline that names this script as `model.script` sets it. To start the "
            f"script by hand on a launched job: {JOB}=…/job.json {FOLDER}=/tmp/by-hand torchrun -m …"
        ) from None
    return TrainingJob.from_json(job_file.read_text()), folder


@cache
def attach() -> "Training":
    """Return the training of which this process is a rank, the same object at each call.

    Raises `BadConfiguration` if no launcher started this process, `InputChanged` if the snapshot is not the job's.
    """
    job, folder = submitted()
    try:
        snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest, job.schema_hash)
    except ShardChanged as error:
        raise InputChanged(str(error)) from error
    mirror = Mirror(address, folder) if (address := os.environ.get(MIRROR)) else None
    return Training.begin(job, snapshot, folder, mirror)


@dataclass(kw_only=True)
class Training:
    """One rank's view of its training. Rank 0 reports for all: on other ranks `log` and `finish` write nothing."""

    job: TrainingJob
    snapshot: Snapshot
    folder: Path
    """Folder of the job, kept between attempts."""
    rank: int
    world_size: int
    resumed_step: int
    """Step of the newest complete checkpoint; 0 without one."""
    resumed_world_size: int
    """World size at the time of that checkpoint; 0 without one. May differ from the current one."""
    step: int
    """Newest logged or saved step."""
    checkpoints: Checkpoints
    mirror: Mirror | None
    meeting: Meeting | None
    """All ranks; None if torchrun was called by hand in a way that gives them no common store."""
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat(0), init=False)
    """Heartbeat that each call moves, to show that the script makes progress; by default no agent reads it."""
    _saved: int = field(init=False)
    """Step of the newest complete checkpoint; 0 without one. Rank 0 knows all, other ranks those of all ranks."""
    _has_handed_in: bool = field(default=False, init=False)
    """True once `finish` was called."""
    _train_rows: Rows | None = field(default=None, init=False)
    """Training rows as `tensors` and `matrix` read them."""
    _has_seen_weights: bool = field(default=False, init=False)
    """True once the script asked for the weights of the training rows."""
    _recovery: Callable[[int], None] | None = field(default=None, init=False)
    """Reports the recovery; called at a resumed attempt's first sign of training."""

    def __post_init__(self) -> None:
        self._saved = self.resumed_step

    @classmethod
    def begin(cls, job: TrainingJob, snapshot: Snapshot, folder: Path, mirror: Mirror | None) -> Self:
        """Find the newest checkpoint and, on rank 0, record a new attempt."""
        keep_connections()
        folder.mkdir(parents=True, exist_ok=True)
        keep_events(folder)
        rank = int(os.environ.get("RANK", "0"))
        me = str(os.getpid())
        begins = rank == 0 and os.environ.setdefault(PROCESS, me) == me
        if begins:
            wait_until_alone(folder)
        checkpoints = checkpoints_of(job, folder, mirror)
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        meeting = Meeting.join(rank, world_size)
        if begins or meeting is None or world_size == 1:
            with one_at_a_time(folder):
                step = checkpoints.newest_good() or 0
            saved_by = _world_size_at(folder, step)
            if meeting is not None:
                meeting.tell("resumed", [step, saved_by])
        else:  # the same step as rank 0, which may save another checkpoint meanwhile
            step, saved_by = meeting.hear("resumed", 0)
            with one_at_a_time(folder):  # with a store, the first rank of a machine fetches it
                if step:
                    checkpoints.examine(step)
        training = cls(
            job=job,
            snapshot=snapshot,
            folder=folder,
            rank=rank,
            world_size=world_size,
            resumed_step=step,
            resumed_world_size=saved_by,
            step=step,
            checkpoints=checkpoints,
            mirror=mirror,
            meeting=meeting,
        )
        if begins and not training.is_finished:
            training._begin_attempt()
        return training

    @property
    def inputs(self) -> InputSpec:
        """Columns by name, sizes of embeddings, and the fill for missing numbers."""
        return self.snapshot.inputs

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Hyperparameters as the pipeline declares them. The script's command line has them too."""
        return self.job.hyperparameters

    def rows(self, split: ReadableSplit) -> Rows:
        """Return a split as arrays, with standardised numbers. Labels are float32; those of classes (`multiclass`) are
        int64 here and in `tensors` and `matrix`, places in `inputs.classes`. Raises `InputChanged` if a file differs
        from the job's."""
        return rows_of(self.snapshot, split)

    def weights(self, split: ReadableSplit) -> NDArray[np.float32] | None:
        """Return the weight of each row of a split, `[rows]` float32, 1 on average; None if the pipeline declares no
        `features.weight`.

        If it does, a script multiplies the loss of each row with its weight. `finish` refuses a model whose script
        never asked for the weights of the training rows."""
        self._has_seen_weights |= split == "train"
        return weights_of(self.rows(split))

    def tensors(
        self, split: ReadableSplit, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a split for torch: numbers `[rows, F]` float32, standardised and filled, category ids `[rows, C]`
        int64, labels `[rows]` float32, or int64 for classes.

        In the training rows, a share `training.category_dropout` of the ids is 0, unknown; each `epoch` draws others.
        A module given to `finish` takes the first two; the standardisation is stored with it."""
        return tensors_of(self._learned(split, epoch), self.inputs)

    def blobs(self, split: ReadableSplit) -> torch.Tensor:
        """Return the blobs of a split, `[rows, ...]` as the pipeline's `decode` returns them, all in memory. `rows`
        has their bytes, one row at a time. A module given to `finish` takes them as the third argument."""
        return blobs_of(rows_of(self.snapshot, split), self.job, self.inputs)

    def matrix(self, split: ReadableSplit, epoch: int = 0) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return a split for libraries that take one matrix: `[rows, F + C]` float32 (standardised numbers, NaN where
        missing, then category ids) and labels `[rows]`, float32, or int64 for classes.

        In the training rows, a share `training.category_dropout` of the ids is 0, unknown; each `epoch` draws others.
        An ONNX graph given to `finish` takes such a matrix."""
        return matrix_of(self._learned(split, epoch))

    def _learned(self, split: ReadableSplit, epoch: int) -> Rows:
        """Return the rows from which a model learns: training rows with the category dropout of `epoch`."""
        if split != "train":
            return rows_of(self.snapshot, split)
        if self._train_rows is None:  # views of a mapped file: a call in each epoch verifies no digest again
            self._train_rows = rows_of(self.snapshot, split)
        return with_dropped(self._train_rows, self.job.settings.category_dropout, self.job.seed, epoch)

    @property
    def resumed_from(self) -> Path | None:
        """Folder that the newest complete `checkpoint` of an earlier attempt filled; None at the first start."""
        return self.folder / folder_of(self.resumed_step) if self.resumed_step else None

    def log(self, step: int, **figures: float) -> None:
        """Report metrics after `step`, for the run's page and the tracker; `loss` and `validation_loss` are drawn as
        curves.

        A metric that is not finite is left out. A loss that is not finite raises `Diverged`, which the launcher does
        not retry.
        """
        self.heartbeat.step(step)
        self.step = step
        for name in _LOSSES:
            if not math.isfinite(figures.get(name, 0.0)):
                raise Diverged(
                    f"{name} was {figures[name]} after step {step}: lower the learning rate, or look for extreme "
                    "values in the rows"
                )
        if self.rank == 0:
            finite = {name: float(value) for name, value in figures.items() if math.isfinite(value)}
            validation = {name: finite.pop(name) for name in ("validation_loss",) if name in finite}
            for kind, told in (("metrics", finite), ("epoch", validation)):
                if told:
                    emit(kind, step, **told)
            self._tell_recovery(step)

    def moved(self) -> None:
        """Show that the script makes progress while there is nothing to `log`: call it for each batch, also in
        validation.

        Costs an addition. A rank without progress for `training.stall_timeout_seconds` counts as stuck.
        """
        self.heartbeat.moved()

    @contextmanager
    def checkpoint(self, step: int, *, all_ranks: bool = False) -> Generator[Path]:
        """Yield an empty folder for the files that the script needs to resume after `step`, counted from 1. Rank 0
        calls it.

        With `all_ranks` each rank calls it and writes files under its own names. On one machine all ranks share the
        folder; folders of several machines are merged. The checkpoint is committed once the block has ended (on all
        ranks). If a rank dies before that, the previous checkpoint is used. The newest `keep_checkpoints` are kept.
        Raises `BadConfiguration` if `step` is not above the newest complete checkpoint, `StorageFailed`.
        """
        if (self.rank and not all_ranks) or step < 1:
            raise BadConfiguration(
                f"only rank 0 saves, after step 1 or later: this is rank {self.rank}, step {step}. If each rank has "
                "files to save, call checkpoint(step, all_ranks=True) on each rank"
            )
        meeting = self.meeting if all_ranks else Meeting(None, 0, 1)
        if meeting is None:
            raise BadConfiguration(
                "the ranks have no common store: start them with torchrun, whose agent has a store"
            )
        started = time.monotonic()
        self.heartbeat.rest()  # a store has its own timeout
        together = meeting.round()
        try:
            # On one machine, the script writes directly to the final disk.
            place = self.checkpoints.writing if self.mirror is None else self.folder / ".checkpoint"
            self._refuse_unlike(step, together.gather("step", step))
            self._refuse_earlier(step)
            together.all_succeed("place", lambda: self._make_place(step, place))
            yield place
            together.all_succeed("written", lambda: None)
            sha256 = _together(together.gather("files", self._keep_files(place, step)))
            if not self.rank:
                self.checkpoints.count(step, sha256, best_step=0)
            together.all_succeed("counted", lambda: None)
            self._saved = step
            self.step = max(self.step, step)
        except BaseException as error:
            together.fail(error)
            if not self.rank:
                self.checkpoints.discard()
            raise
        took = 1000 * (time.monotonic() - started)
        self.heartbeat.step(self.step)
        if not self.rank:
            emit("checkpoint", step, checkpoint_duration_ms=took, blocked_ms=took)
            self._tell_recovery(step)

    def _refuse_unlike(self, step: int, steps: list[int]) -> None:
        if set(steps) != {step}:
            said = ", ".join(f"rank {rank} of step {one}" for rank, one in enumerate(steps))
            raise BadConfiguration(
                f"ranks save different checkpoints ({said}): save the same steps on each rank"
            )

    def _refuse_earlier(self, step: int) -> None:
        if step > self._saved:
            return
        remedy = (
            f"this attempt resumed from step {self.resumed_step}: continue to count there, at "
            "training.resumed_step + 1"
            if step <= self.resumed_step
            else "count the steps upwards, over all epochs, and save each step once"
        )
        raise BadConfiguration(
            f"checkpoint({step}) is not above the newest complete checkpoint, of step {self._saved}, which it would "
            f"replace: {remedy}"
        )

    @property
    def _stores_for_its_machine(self) -> bool:
        """True if this rank stores the files of its machine. If the folder outlives the machine, rank 0 stores all
        files."""
        return self.rank == 0 if self.mirror is None else int(os.environ.get("LOCAL_RANK", "0")) == 0

    def _make_place(self, step: int, place: Path) -> None:
        if self.rank == 0:
            self.checkpoints.claim(step)
        if self.mirror is not None and self._stores_for_its_machine:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()

    def _keep_files(self, place: Path, step: int) -> dict[str, str]:
        """Make the files of this machine survive a power cut; return their SHA-256, on the rank that stores them."""
        if self.rank == 0:
            # Checkpoints need the index of parts, or they count as another version's. A script may have written none.
            (place / INDEX).touch()
        if not self._stores_for_its_machine:
            return {}
        return {name: self._keep(place, name, step) for name in _files(place)}

    @property
    def is_finished(self) -> bool:
        """True if `finish` was called, in this attempt or in one that died while it ended."""
        return (self.folder / RESULT).exists()

    def check_model(self, model: object) -> None:
        """Try `model` as `finish` will, on the first training rows, and store nothing.

        Call it at the beginning of a script, with an untrained module or a model of one tree: that refuses a wrong
        model at once instead of after hours. Raises `BadConfiguration`, which is final.
        """
        if self.rank == 0:
            check_model(model, self._example("train"))
        self.moved()

    def _example(self, split: ReadableSplit) -> Example:
        try:
            return example_of(self.snapshot, self.job, split)
        except ShardChanged as error:
            raise InputChanged(str(error)) from error

    def finish(self, model: object, *, steps: int, validation_loss: float, epochs: int = 0) -> None:
        """Hand in the trained model: the pipeline evaluates and registers it.

        `model` is a torch module, a model of LightGBM, XGBoost or scikit-learn, an ONNX graph, or a `Blend` of these.
        `script_model.check_model` documents the inputs of each, tries it on the first validation rows, and raises
        `BadConfiguration`, which is final. `epochs` is the number of passes over all training rows, for the rows per
        second. The script should end soon after; the training is done even if a rank fails afterwards. A second call
        raises `BadConfiguration` on each rank, and the training fails: no model of the two is registered.
        """
        self.heartbeat.rest()
        if self._has_handed_in:
            self._take_back()
            raise BadConfiguration(
                "the script called training.finish twice, and only one model can be registered: call it once, with the "
                "model to register. To register several as one, hand in their Blend"
            )
        if self.rank:
            self._has_handed_in = True
            return
        if not math.isfinite(validation_loss):
            raise Diverged(f"validation_loss was {validation_loss}: hand in a model with a finite loss")
        if self.snapshot.weight and not self._has_seen_weights:
            raise BadConfiguration(
                f"rows are weighted by {self.snapshot.weight!r} (features.weight), and the script never asked for "
                'them: multiply the losses of the rows with training.weights("train"), or remove the key'
            )
        attempts, seconds = read_attempts(self.folder), sum(seconds_trained(self.folder))
        weights = write_model(check_model(model, self._example("validation")), self.folder)
        result = TrainingResult(
            fingerprint=self.job.fingerprint,
            weights=str(weights.path),
            weights_sha256=weights.sha256,
            best_step=steps,
            best_validation_loss=validation_loss,
            steps=steps,
            epochs=epochs,
            world_size=self.world_size,
            rows_per_second=epochs * self.snapshot.rows("train") / seconds,
            seconds=seconds,
            attempts=len(attempts),
            resumed_from_steps=tuple(attempt.from_step for attempt in attempts[1:]),
            worker_seconds=worker_seconds(self.folder),
        )
        self._tell_recovery(steps)
        emit("finished", steps, best_step=steps, best_validation_loss=validation_loss, seconds=seconds)
        write_whole(self.folder / RESULT, lambda path: path.write_text(result.to_json()))
        if self.mirror is not None:
            self.mirror.push([*weights.files, EVENTS], last=RESULT)
        self._has_handed_in = True

    def _take_back(self) -> None:
        """Remove the result of the first `finish`, so that the training fails."""
        if self.rank == 0 and self.mirror is not None:
            self.mirror.remove([RESULT])
        elif self.rank == 0:
            (self.folder / RESULT).unlink()

    def _keep(self, place: Path, name: str, step: int) -> str:
        """Make a file of the checkpoint of `step` survive a power cut; return its SHA-256."""
        path = place / name
        if self.mirror is None:
            sync(path)
        else:
            with path.open("rb") as file, self.checkpoints.create(step, name) as stored:
                shutil.copyfileobj(file, stored, _PIECE)
        return file_sha256(path)

    def _begin_attempt(self) -> None:
        attempt, self._recovery = begin_attempt(self.folder, self.resumed_step, self.world_size)
        self.checkpoints.begin(attempt)
        tell_beginning(
            self.job,
            attempt.number,
            self.resumed_step,
            world_size=self.world_size,
            pids=[os.getpid()],
            ranks_began=[],  # each rank of a script begins by itself
            steps=0,  # unknown: the script decides
            device="cuda" if torch.cuda.is_available() else "cpu",
            is_stored=self.mirror is not None,
        )

    def _tell_recovery(self, step: int) -> None:
        if self._recovery is not None:
            self._recovery(step)
            self._recovery = None


def _together(machines: list[dict[str, str]]) -> dict[str, str]:
    """Merge file → SHA-256 of the files that each rank stored. Raises `BadConfiguration` for a name that occurs
    twice."""
    together: dict[str, str] = {}
    for files in machines:
        for name in files.keys() & together.keys():
            raise BadConfiguration(
                f"ranks of two machines wrote {name} into one checkpoint: put the rank into the name of a file"
            )
        together |= files
    return together


def _world_size_at(folder: Path, step: int) -> int:
    """Return the world size of the attempt that saved `step`; 0 if unknown."""
    return next((one.world_size for one in reversed(read_attempts(folder)) if one.from_step < step), 0)


def _files(folder: Path) -> list[str]:
    """Return the paths of the files below `folder`, relative to it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

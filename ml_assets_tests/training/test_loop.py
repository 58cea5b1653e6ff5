"""The loop in this process: what it does between two steps."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.loop import fit
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import Run, prepare
from ml_assets.model.training.telemetry.event_log import keep_events
from ml_assets_tests.training.small_jobs import small_job
from resources.job.errors import Preempted
from resources.job.events import read_events

LANES = 6


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    """SIGTERM means to this process what it did before."""
    before = signal.getsignal(signal.SIGTERM)
    yield StopRequest()
    signal.signal(signal.SIGTERM, before)


def resumed(snapshot: Snapshot, folder: Path, group: Group) -> Run:
    """Two epochs of 40 steps, from the newest checkpoint in `folder`."""
    folder.mkdir(exist_ok=True)
    keep_events(folder)
    job = small_job(snapshot, "blocks", workers=1, epochs=2, lanes=LANES, global_batch=24, dropout=0.1)
    run = prepare(job, folder, group)
    run.resume()
    return run


@pytest.mark.parametrize("determinism", ["tolerance", "bitwise"])
def test_validation_computes_with_no_more_rows_at_once_than_training(
    tmp_path: Path, snapshot: Snapshot, group: Group, stop: StopRequest, determinism: str
) -> None:
    """Otherwise a batch that fits the device in training may not fit it at the end of the epoch."""
    settings = {"workers": 1, "epochs": 1, "lanes": LANES, "global_batch": 24, "determinism": determinism}
    passes = 1 + (determinism == "tolerance")
    run = prepare(
        small_job(snapshot, "blocks", gradient_accumulation_steps=passes, **settings), tmp_path, group
    )
    run.resume()
    largest = {True: 0, False: 0}

    def note(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        largest[model.training] = max(largest[model.training], len(inputs[0]))

    run.model.core.register_forward_pre_hook(note)
    fit(run, RowLog(run.folder, 1, 0), stop, Heartbeat(0))
    assert largest[True] == largest[False] == (12 if determinism == "tolerance" else 24 // LANES)


def test_a_stop_request_does_not_wait_for_the_validation(
    tmp_path: Path, snapshot: Snapshot, group: Group, stop: StopRequest
) -> None:
    """The validation is done after the resume."""
    run, validated = resumed(snapshot, tmp_path / "stopped", group), list[float]()

    def note(model: nn.Module, _: object) -> None:
        if not model.training:
            validated.append(time.monotonic())
            stop.requested = len(validated) == 2
            time.sleep(0.06)

    run.model.core.register_forward_pre_hook(note)
    steps = run.order.steps_per_epoch
    with pytest.raises(Preempted, match=f"checkpoint at step {steps}$"):
        fit(run, RowLog(run.folder, 1, 0), stop, Heartbeat(0))
    assert len(validated) == 3 < LANES
    assert [event for event in read_events(run.folder) if event.kind == "epoch"] == []

    stop.requested = False
    again = resumed(snapshot, run.folder, group)
    assert (again.progress.step, again.progress.validated_step) == (steps, 0)
    fit(again, RowLog(run.folder, 2, 0), stop, Heartbeat(0))
    unbroken = resumed(snapshot, tmp_path / "unbroken", group)
    fit(unbroken, RowLog(unbroken.folder, 1, 0), stop, Heartbeat(0))
    told, wanted = (
        [
            (event.step, event.values["validation_loss"])
            for event in read_events(folder)
            if event.kind == "epoch"
        ]
        for folder in (run.folder, unbroken.folder)
    )
    assert told == wanted
    assert again.progress.best_step == unbroken.progress.best_step
    for name, value in unbroken.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name

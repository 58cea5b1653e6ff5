"""No model is exported whose loss differs from the loss that its training showed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ml_assets.data.snapshots.split_reader import Snapshot, open_snapshot
from ml_assets.model.training.data.batches import SplitReader
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.entry import write_result
from ml_assets.model.training.loop import fit
from ml_assets.model.training.measured import Exported, loss_of_some, refuse_other_export
from ml_assets.model.training.process.group import Group, PeerFailed
from ml_assets.model.training.run import Run, prepare
from ml_assets.model.training.step.load import load_model
from ml_assets.model.training.step.objectives import objective_of
from ml_assets_tests.layouts.rank_pool import RankStopped, Steps
from ml_assets_tests.training.hidden_state_models import HIDDEN
from ml_assets_tests.training.rank_processes import in_ranks
from ml_assets_tests.training.small_jobs import small_job
from resources.job.errors import TrainingFailed, UnmeasuredModel
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import Parallel

MODELS = "ml_assets_tests.training.hidden_state_models"
LAYOUTS: dict[str, dict[str, Any]] = {
    "bitwise": {"determinism": "bitwise"},
    "tolerance": {},
    "shards": {"parallel": Parallel(shard="full")},
}
LAYOUT, SNAPSHOT = "layout", "snapshot"


def job_of(snapshot: Snapshot, kind: str, workers: int = 2, **settings: Any) -> TrainingJob:
    """One epoch of 40 steps."""
    return small_job(snapshot, f"{MODELS}.{kind}", epochs=1, lanes=2, workers=workers, **settings)


def trained(job: TrainingJob, folder: Path, group: Group, most: int | None = None) -> tuple[Run, Exported]:
    """Train to the end, from the newest checkpoint in `folder`; raise `RankStopped` after `most` steps."""
    folder.mkdir(exist_ok=True)
    run, steps = prepare(job, folder, group), Steps(most)
    run.resume()
    watch: Any = steps
    try:
        return run, fit(run, RowLog(folder, 1, group.rank), watch, watch)
    except RankStopped:
        run.wait_until_saved()
        raise


def note_snapshot(place: Path, snapshot: Snapshot) -> None:
    """Tell ranks of `in_ranks` which snapshot to train on."""
    facts = [snapshot.digest, snapshot.schema_hash, str(snapshot.folder)]
    (place / SNAPSHOT).write_text(json.dumps(facts))


def noted_snapshot(place: Path) -> Snapshot:
    digest, schema_hash, folder = json.loads((place / SNAPSHOT).read_text())
    return open_snapshot(Path(folder), digest, schema_hash)


def _train_all(group: Group, place: Path) -> None:
    """Train a model of each kind; leave in its folder a result, or the name of its refusal."""
    snapshot = noted_snapshot(place)
    for kind in ("Honest", *HIDDEN):
        job = job_of(snapshot, kind, **LAYOUTS[(place / LAYOUT).read_text()])
        try:
            run, exported = trained(job, place / kind, group)
        except (TrainingFailed, PeerFailed) as error:
            if group.is_first:
                (place / kind / "refused").write_text(type(error).__name__)
        else:
            if group.is_first:
                write_result(run, exported)


@pytest.mark.parametrize(
    "layout", [pytest.param(one, marks=[pytest.mark.nightly] if one == "shards" else []) for one in LAYOUTS]
)
def test_each_registered_loss_is_the_one_that_was_shown(
    tmp_path: Path, snapshot: Snapshot, layout: str
) -> None:
    """Each kind of hidden state is refused before a result, by the exporter's process, or changes nothing.

    This process never trains, as the exporter's does not.
    """
    (tmp_path / LAYOUT).write_text(layout)
    note_snapshot(tmp_path, snapshot)
    assert in_ranks(2, tmp_path, _train_all) == [None, None]
    ends: dict[str, str] = {}
    reader = SplitReader(snapshot, "validation", torch.device("cpu"))
    for kind in ("Honest", *HIDDEN):
        refused = tmp_path / kind / "refused"
        if refused.exists():
            ends[kind] = refused.read_text()
            continue
        job = job_of(snapshot, kind, **LAYOUTS[layout])
        result = TrainingResult.read(tmp_path / kind / "result.json")
        model = load_model(job, snapshot.inputs, Path(result.weights))
        try:
            refuse_other_export(job, snapshot, model, result)
        except UnmeasuredModel:
            ends[kind] = "refused by the exporter"
            continue
        ends[kind] = "exported"
        fresh = load_model(job, snapshot.inputs, Path(result.weights))
        (units,) = reader.shard_units
        loss = loss_of_some(fresh, objective_of(job.objective), reader, units)
        assert loss == pytest.approx(result.best_validation_loss, rel=1e-4), kind
    assert ends.pop("Honest") == "exported"
    assert "exported" not in ends.values(), ends

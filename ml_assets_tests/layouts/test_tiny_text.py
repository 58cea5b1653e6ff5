"""The pipeline tiny_text as it is declared: two readers of rows, each of two workers that divide every layer."""

import dataclasses
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.split_reader import SourceValues
from ml_assets.defs import tiny_text
from ml_assets.defs.tiny_text import features, source
from ml_assets.model.steps.identity import training_job
from ml_assets.model.steps.snapshot import row_choice
from ml_assets_tests.layouts.layout_jobs import train
from ml_assets_tests.snapshots.chosen_rows import chosen_rows
from ml_assets_tests.training.small_jobs import assert_each_row_once_per_epoch
from resources.job.training_settings import Parallel

FIRST, WEEKS = date(2018, 10, 1), 6
"""The last three have texts: the rest of the window may be empty."""


@pytest.mark.nightly
def test_the_declared_layout_learns_as_one_worker_does(tmp_path: Path) -> None:
    """A few weeks of the real texts, for one epoch of smaller steps."""
    *_, declared = yaml.safe_load_all((Path(tiny_text.__path__[0]) / "defs.yaml").read_text())
    window = {"train": 4, "validation": 1, "holdout": 1}
    spec = TrainingPipelineSpec.model_validate(declared["attributes"] | {"window": window})
    assert spec.training.workers == 4
    assert spec.training.parallel == Parallel(shard="full", tensor=2)
    assert spec.training.global_batch * features.WINDOW == 65_536
    weeks = [FIRST + timedelta(weeks=n) for n in range(WEEKS)]
    texts = pl.concat([source.read_documentation(week) for week in weeks])
    table = features.windows({"datasets/documentation": texts.lazy()}, weeks[0], weeks[-1])
    chosen = chosen_rows(table, *row_choice(spec, [week.isoformat() for week in weeks]))
    snapshot = build_snapshot(
        chosen, source=SourceValues(table="features/small"), into=tmp_path / "snapshots"
    )
    assert snapshot.inputs.outputs == 256
    job = training_job(
        spec, weeks[-1].isoformat(), snapshot.folder, snapshot.digest, "", snapshot.schema_hash
    )
    small = dataclasses.replace(job.settings, global_batch=64, epochs=1, lanes=4)
    spread = dataclasses.replace(job, settings=small)
    alone = dataclasses.replace(job, settings=dataclasses.replace(small, workers=1, parallel=Parallel()))
    curves = [train(one, tmp_path / name) for name, one in (("spread", spread), ("alone", alone))]
    assert curves[0].curve("loss") == pytest.approx(curves[1].curve("loss"), rel=1e-3)
    assert curves[0].curve("loss")[0] > 1.3 * curves[0].curve("loss")[-1]
    assert_each_row_once_per_epoch(tmp_path / "spread", snapshot, spread)

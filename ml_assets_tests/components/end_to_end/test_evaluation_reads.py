"""Columns that an evaluation reads: those that its models and its declaration name, and no others."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest

from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.data.snapshots.split_rows import rows_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.model.release.runtime import PredictionNotFinite
from ml_assets.model.steps import split_predictions
from ml_assets.model.steps.evaluate import evaluate_model
from ml_assets.model.steps.split_predictions import SplitWorkers, predictions_of
from ml_assets_tests.components.installation import Installation, failure_of, readings_components
from ml_assets_tests.components.model_run import EVALUATION, train
from ml_assets_tests.components.objectives_pipeline import HERE as LABELS
from ml_assets_tests.components.objectives_pipeline import UNREAD
from ml_assets_tests.components.readings_pipeline import (
    FEATURE_TABLE,
    FEATURES,
    MODEL,
    READINGS,
    WINDOW,
    days,
)
from resources.platform import Platform

POOLS = (
    {"pool": "in-process"},
    {"pool": "processes", "pool_workers": 2, "pool_after_seconds": 0},
)
COLUMNS = FEATURE_TABLE["contract"]["columns"]
DECLARED = readings_components(
    features={
        "function": f"{LABELS}.with_unread",
        "contract": FEATURE_TABLE["contract"]
        | {"columns": [*COLUMNS, {"names": UNREAD, "dtype": "float64"}]},
    }
)


def spoil(file: Path, columns: list[str]) -> Path:
    """Overwrite every byte of these columns in a Parquet file; return the file."""
    found = pq.read_metadata(file)  # pyright: ignore[reportUnknownMemberType]
    file.chmod(0o644)
    with file.open("r+b") as target:
        for group in range(found.num_row_groups):
            for place in range(found.num_columns):
                column = found.row_group(group).column(place)
                if column.path_in_schema in columns:
                    target.seek(column.dictionary_page_offset or column.data_page_offset)
                    target.write(b"\xff" * column.total_compressed_size)
    return file


def test_an_evaluation_decodes_no_other_column(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the training, the lake hands out files in which all bytes of the other columns are overwritten. The
    evaluation is the same, and reading one such column fails. So neither their number nor their size costs memory."""
    last = days(WINDOW, start=1)[-1]
    installation = installation.declared_as(DECLARED)
    for table, first in ((READINGS, days(1)[0]), (FEATURES, days(2)[1])):
        result = installation.run(table, partition=first, last=last)
        assert result.success, failure_of(result)
    run = train(installation, last)
    spec, lake = DECLARED[-1].spec, installation.platform.lake
    copies: dict[Path, Path] = {}
    # `at` is of the primary key: it is read only to name a row in an error.
    others = [*UNREAD, "predicted_at", "label_known_at", "at"]

    def spoiled(local: Path) -> Path:
        if local not in copies:
            copies[local] = spoil(Path(shutil.copy(local, tmp_path / f"{len(copies)}.parquet")), others)
        return copies[local]

    fetch = lake.fetch

    def spoiled_files(ref: str, paths: Sequence[str]) -> dict[str, Path]:
        found = fetch(ref, paths)
        return {path: spoiled(file) if path.endswith(".parquet") else file for path, file in found.items()}

    monkeypatch.setattr(lake, "fetch", spoiled_files)
    for name in (UNREAD[7], "label_known_at"):
        with pytest.raises(pl.exceptions.PolarsError):
            installation.main.scan(FEATURES, [last]).select(name).collect()
    training_set = run.result.output_for_node(f"{MODEL}.snapshot", "snapshot")
    trained = run.result.output_for_node(f"{MODEL}.train")
    again, _ = evaluate_model(spec, installation.platform, training_set, trained, "again")
    assert len(copies) == WINDOW
    assert again.evaluation[:12] == run.facts[EVALUATION]["evaluation"]
    assert again.bundle == run.facts[EVALUATION]["bundle"]


def test_workers_score_what_the_step_scores(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit of the document, and with the same refusal of a row, by its primary key."""
    monkeypatch.setattr(split_predictions, "_AT_ONCE", 8)
    last = days(WINDOW, start=1)[-1]
    installation = installation.declared_as(DECLARED)
    for table, first in ((READINGS, days(1)[0]), (FEATURES, days(2)[1])):
        result = installation.run(table, partition=first, last=last)
        assert result.success, failure_of(result)
    run = train(installation, last)
    training_set = run.result.output_for_node(f"{MODEL}.snapshot", "snapshot")
    trained = run.result.output_for_node(f"{MODEL}.train")
    spec, job = DECLARED[-1].spec, training_set.job
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest, job.schema_hash)
    documents: list[str] = []
    refusals: list[str] = []
    for pool in POOLS:
        platform = Platform(installation.settings.model_copy(update=pool))
        documents.append(evaluate_model(spec, platform, training_set, trained, "again")[0].evaluation)
        reader = TableReader(platform.lake, training_set.source_commit)
        holdout = rows_of(reader, training_set.table, training_set.keys, snapshot, platform)["holdout"]
        assert holdout.height > 16
        workers = SplitWorkers(platform=platform, pool=platform.pool)
        bundle, key = run.facts[EVALUATION]["bundle"], spec.features.primary_key
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(split_predictions, "predict", not_finite)
            with pytest.raises(PredictionNotFinite) as error:
                predictions_of(run.served, holdout, key, bundle, workers)
        refusals.append(str(error.value))
    assert documents[0] == documents[1]
    assert refusals[0] == refusals[1]


def not_finite(task: split_predictions.PredictionTask) -> None:
    """Refuse the second row of a task, as the model does with a row of values that are too far away."""
    name = split_predictions.names_of(task.part.read(task.primary_key), task.primary_key)[1]
    raise PredictionNotFinite("the model has no finite prediction for", 1, "").named(name)

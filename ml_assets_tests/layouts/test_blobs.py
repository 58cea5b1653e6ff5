"""Rows with pictures, as a pipeline: one click to a version that answers rows with pictures, and to the next one."""

import base64
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import releases_of
from ml_assets.model.release.runtime import InputRefused
from ml_assets_tests.components.installation import STAGES, Installation, failure_of, readings_components
from ml_assets_tests.components.model_run import CHECKPOINT, EVALUATION, TRAINING_SET, ModelRun, train
from ml_assets_tests.components.readings_pipeline import MODEL, WINDOW, days
from ml_assets_tests.layouts.picture_pipeline import (
    DATASET_CHANGES,
    FEATURE_CHANGES,
    HERE,
    PIPELINE_CHANGES,
    picture,
)
from resources.job.job import TrainingJob
from resources.ledger import Person

DAY, NEXT_DAY = days(2, start=WINDOW)


def declared(installation: Installation, **changes: Any) -> Installation:
    """Return the pipeline with some of its top-level attributes changed."""
    return installation.declared_as(
        readings_components(DATASET_CHANGES, FEATURE_CHANGES, PIPELINE_CHANGES | changes)
    )


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Installation:
    """An installation with the pictures of both days."""
    home = tmp_path_factory.mktemp("installation")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    return declared(Installation(home)).with_tables(2)


@pytest.fixture(scope="module")
def trained(installation: Installation) -> ModelRun:
    return train(installation, DAY)


def test_one_click_makes_a_registered_version_that_has_seen_pictures(trained: ModelRun) -> None:
    assert list(trained.facts) == list(STAGES)
    assert trained.facts[EVALUATION]["decision"] == "blessed"
    assert trained.facts[EVALUATION]["rmse"] < 0.4 * trained.facts[EVALUATION]["baseline_rmse"]
    assert trained.facts[TRAINING_SET]["left out"] == {"blob missing": 9}
    folder = Path(trained.facts[CHECKPOINT]["folder"])
    job = TrainingJob.from_json((folder / "job.json").read_text())
    assert job.decode == f"{HERE}.decode"
    assert (Path(job.snapshot) / "train-00000.tar").is_file()


def test_what_is_loaded_by_mlflow_answers_rows_with_pictures(
    trained: ModelRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow.pyfunc

    uri = trained.installation.settings.resolved_tracking_uri.reveal()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", uri)
    loaded = mlflow.pyfunc.load_model(f"models:/{MODEL}/1")
    assert (loaded.metadata.metadata or {})["inputs"]["picture"] == "binary"
    rows = trained.rows
    expected = trained.served.predict(rows)
    assert np.corrcoef(expected, rows["made"].to_numpy())[0, 1] > 0.95
    frame = rows.to_pandas()
    np.testing.assert_array_equal(loaded.predict(frame), expected)
    frame["picture"] = [base64.b64encode(content).decode() for content in frame["picture"]]
    np.testing.assert_array_equal(loaded.predict(frame), expected)  # as JSON brings them
    bright = dict(rows.row(0, named=True), picture=picture(1.0))
    dark = dict(bright, picture=picture(0.0))
    assert trained.served.predict_row(bright) > trained.served.predict_row(dark) + 10
    with pytest.raises(InputRefused, match=r"'picture'.*row 0 \(4 bytes\).*error"):
        trained.served.predict(rows.with_columns(pl.lit(b"none").alias("picture")))


@pytest.mark.nightly
def test_the_next_version_is_compared_on_the_same_pictures(
    trained: ModelRun,
) -> None:
    """A version that does not read pictures is compared on the same rows too."""
    promote(
        releases_of(trained.installation.platform), MODEL, 1, by=Person.unchecked("ada"), reason="the first"
    )
    assert "champion (version 1)" in train(trained.installation, NEXT_DAY).report
    blind = declared(
        trained.installation,
        features={**PIPELINE_CHANGES["features"], "blob": None},
        model={"function": "ml_assets_tests.components.readings_pipeline.build"},
    )
    without = train(blind, NEXT_DAY)
    assert "champion (version 1)" in without.report
    assert without.facts[EVALUATION]["decision"] == "rejected"
    assert without.served.blob == ""


def test_a_blob_that_cannot_be_read_is_named_before_anything_is_launched(
    installation: Installation,
) -> None:
    blob = {"column": "picture", "decode": f"{HERE}.uncompressed"}
    result = declared(installation, features={**PIPELINE_CHANGES["features"], "blob": blob}).train(DAY)
    assert not result.success
    said = failure_of(result)
    assert "06:00:00" in said.partition("'picture' of row at=2024-01-02 ")[2]
    assert "machine=drill" in said
    assert "`decode` failed with ValueError: " in said
    assert "cannot reshape array" in said


def test_a_script_learns_from_blobs_and_its_model_is_served_with_them(trained: ModelRun) -> None:
    model = {"script": "ml_assets_tests.scripts.learn_pictures", "hyperparameters": {"lr": 0.3, "steps": 300}}
    script = train(declared(trained.installation, model=model, training={"workers": 1}), DAY)
    assert script.facts[EVALUATION]["rmse"] < 0.4 * script.facts[EVALUATION]["baseline_rmse"]
    assert script.served.blob == "picture"
    made = script.rows["made"].to_numpy()
    assert np.corrcoef(script.served.predict(script.rows), made)[0, 1] > 0.95

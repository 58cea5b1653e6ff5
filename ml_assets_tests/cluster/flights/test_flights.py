"""All flights of 2013 on real servers and two nodes: pods learn what this machine learns.

`.ci/nightly` runs it: the tests beside prove the same on smaller data.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.model.evaluation.metrics.metrics import auc, log_losses
from ml_assets.model.training.step.load import load_model, predict
from ml_assets_tests.cluster.cluster_installation import ClusterInstallation
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.local import LocalLauncher

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def demo(installation: ClusterInstallation) -> dict[str, Any]:
    """Return the demo's own report: all flights of 2013 to a registered model."""
    return json.loads(installation.run("demo", "--json"))


def test_flights_trained_by_pods_have_the_bits_of_a_local_training(
    installation: ClusterInstallation, demo: dict[str, Any], tmp_path: Path
) -> None:
    """Compare the weights bit by bit, and the metrics with those of the demo."""
    artifacts = installation.settings.artifacts_folder
    (folder,) = (artifacts / "training" / "flight_delay").iterdir()
    job = TrainingJob.from_json((folder / "job.json").read_text())
    by_pods = TrainingResult.read(folder / "result.json")
    assert by_pods.fingerprint == demo["fingerprint"]
    assert demo["model_version"] is not None, demo["why"]

    here = LocalLauncher().run(job, tmp_path / "job", lambda _: None, lambda _: None)
    assert here.weights_sha256 == by_pods.weights_sha256
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest)
    rows = snapshot.read("holdout")
    predicted = predict(load_model(job, snapshot.inputs, Path(here.weights)), job.objective, rows)
    # The demo's figures are those of the graph that would be served, in single precision.
    label = rows.label.astype(np.float64)
    assert auc(label, predicted, np.ones(len(label))) == pytest.approx(demo["auc"], abs=1e-5)
    assert log_losses(label, predicted).mean() == pytest.approx(demo["logloss"], abs=1e-5)
    assert installation.left() == []

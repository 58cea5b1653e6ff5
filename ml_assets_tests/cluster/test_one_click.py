"""The sentence the project exists for, on real servers: materializing the model validates its inputs in lakeFS,
trains in pods on two nodes, and registers what they learned.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from deployment.local.servers import Servers
from ml_assets.evaluation.metrics import auc, log_losses
from ml_assets.snapshots.reader import open_snapshot
from ml_assets.training.load import load_model, predict
from ml_assets_tests.browser.conftest import browser, screenshots  # noqa: F401 - fixtures
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.browser.pages import Pages
from ml_assets_tests.browser.server import running_ui
from ml_assets_tests.cluster.environment import ClusterEnvironment, waited_for
from ml_assets_tests.cluster.installation import Installation, install
from ml_assets_tests.servers.running import RunningServers
from resources.launcher.job import TrainingJob, TrainingResult
from resources.launcher.local import LocalLauncher

pytestmark = pytest.mark.timeout(900)

WEEK = "2024-01-01"
DAY = "2013-12-30"
FIVE_STEPS = ["validate_inputs", "snapshot", "train", "evaluate", "register"]
GONE_SECONDS = 10.0


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, running_servers: Servers, cluster: ClusterEnvironment
) -> Installation:
    """New, with nothing in it."""
    return install(tmp_path_factory.mktemp("platform"), RunningServers(running_servers), cluster)


@pytest.fixture(scope="module")
def demo(installation: Installation) -> dict[str, Any]:
    """What the demo says of itself: all flights of 2013 to a registered model."""
    return json.loads(installation.run("demo", "--json", seconds=600))


@pytest.fixture(scope="module")
def dagster(installation: Installation) -> Iterator[Dagster]:
    """The UI of the installation."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in installation.variables.items():
            patch.setenv(name, value)
        with running_ui(installation.home) as dagster:
            yield dagster


@pytest.fixture
def pages(browser: Browser, dagster: Dagster, screenshots: Path) -> Iterator[Pages]:  # noqa: F811
    """A tab."""
    page = browser.new_page(viewport={"width": 1440, "height": 1300})
    yield Pages(page, dagster.url, screenshots)
    page.close()


def _click(pages: Pages, dagster: Dagster, model: str, partition: str, picture: str) -> str:
    """Materialize only the registered model; the id of its run."""
    pages.open_asset(f"{model}/registered_model")
    launch = pages.materialize(partition, picture)
    (run_id,) = [run.id for run in dagster.runs() if run.id.startswith(launch.run)]
    return run_id


def test_flights_trained_by_pods_are_the_bits_and_figures_of_a_local_training(
    installation: Installation, demo: dict[str, Any], tmp_path: Path
) -> None:
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
    assert auc(rows.label, predicted) == pytest.approx(demo["auc"], abs=1e-5)
    assert log_losses(rows.label, predicted).mean() == pytest.approx(demo["logloss"], abs=1e-5)
    assert installation.left() == []


def test_one_click_trains_in_two_pods_on_two_nodes_and_registers(
    installation: Installation, pages: Pages, dagster: Dagster
) -> None:
    installation.run("launch", "datasets/sales", f"2023-01-02..{WEEK}")
    installation.run("launch", "features/sales_features", f"2023-01-30..{WEEK}")
    run_id = _click(pages, dagster, "store_demand", WEEK, "cluster-click")

    nodes: set[str] = set()
    waited_for(
        lambda: bool(nodes.update(installation.nodes()) or len(nodes) == 2),
        "pods on two nodes",
        240,
        lambda: dagster.messages(run_id)[-3000:],
    )
    pages.open_run(run_id)
    pages.shows("loss", seconds=240)
    pages.picture("cluster-run-live")
    run = dagster.wait_for_run(run_id, seconds=300)
    assert run.status == "SUCCESS", dagster.messages(run_id)[-3000:]
    assert list(run.steps) == [f"store_demand.{step}" for step in FIVE_STEPS]
    assert re.search(r"started train-[0-9a-f]{12}-1: 2 pods", dagster.messages(run_id))
    pages.shows(re.compile("^Success$"))
    pages.picture("cluster-run-done")
    pages.open_asset("store_demand/checkpoint")
    pages.shows("world size")
    pages.picture("cluster-asset-checkpoint")
    pages.open_asset("store_demand/registered_model")
    pages.shows(WEEK)
    pages.picture("cluster-asset-registered-model")
    assert installation.left() == []


def test_a_run_terminated_on_its_page_leaves_nothing_on_the_cluster_after_ten_seconds(
    installation: Installation, demo: dict[str, Any], pages: Pages, dagster: Dagster
) -> None:
    run_id = _click(pages, dagster, "flight_delay", DAY, "cluster-terminate")
    pages.open_run(run_id)
    pages.shows("loss", seconds=420)
    assert len(installation.nodes()) == 2
    pages.terminate("cluster-terminate-asked")
    took = waited_for(
        lambda: not installation.left(), "nothing to be left", GONE_SECONDS, lambda: str(installation.left())
    )
    assert took < GONE_SECONDS
    run = dagster.wait_for_run(run_id, seconds=60)
    assert run.status == "CANCELED", dagster.messages(run_id)[-3000:]
    pages.shows(re.compile("^Canceled$"))
    pages.picture("cluster-terminated")

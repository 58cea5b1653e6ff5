"""The sentence the project exists for, on real servers, by one click: materializing the model validates its inputs in
lakeFS, trains in pods on two nodes, and registers what they learned. Another click ends a run.
"""

import re

import pytest

from ml_assets_tests.browser.dagster_pages import Pages
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.cluster_installation import ClusterInstallation, click

pytestmark = pytest.mark.timeout(900)

WEEK, NEXT_WEEK = "2024-01-01", "2024-01-08"
GONE_SECONDS = 10.0
FIVE_STEPS = ["validate_inputs", "snapshot", "train", "evaluate", "register"]


@pytest.fixture(scope="module")
def tables(installation: ClusterInstallation) -> None:
    """Sales and their features, for a model of either week."""
    installation.run("launch", "datasets/sales", f"2023-01-02..{NEXT_WEEK}")
    installation.run("launch", "features/sales_features", f"2023-01-30..{NEXT_WEEK}")


@pytest.mark.usefixtures("tables")
def test_one_click_trains_in_two_pods_on_two_nodes_and_registers(
    installation: ClusterInstallation, pages: Pages, dagster: Dagster
) -> None:
    run_id = click(pages, dagster, "store_demand", WEEK, "cluster-click")

    nodes: set[str] = set()
    waited_for(
        lambda: bool(nodes.update(installation.nodes()) or len(nodes) == 2),
        "pods on two nodes",
        600,
        lambda: dagster.messages(run_id)[-3000:],
    )
    pages.open_run(run_id)
    pages.shows("loss")
    pages.picture("cluster-run-live")
    run = dagster.wait_for_run(run_id)
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


@pytest.mark.usefixtures("tables")
def test_a_run_terminated_on_its_page_leaves_nothing_on_the_cluster(
    installation: ClusterInstallation, pages: Pages, dagster: Dagster
) -> None:
    """Ten seconds after the click, no pod and no Job of the training is left."""
    run_id = click(pages, dagster, "store_demand", NEXT_WEEK, "cluster-terminate")
    pages.open_run(run_id)
    waited_for(
        lambda: len(installation.nodes()) == 2, "two pods", 600, lambda: dagster.messages(run_id)[-3000:]
    )
    pages.terminate("cluster-terminate-asked")
    took = waited_for(
        lambda: not installation.left(), "nothing to be left", GONE_SECONDS, lambda: str(installation.left())
    )
    assert took < GONE_SECONDS
    run = dagster.wait_for_run(run_id)
    assert run.status == "CANCELED", dagster.messages(run_id)[-3000:]
    pages.shows(re.compile("^Canceled$"))
    pages.picture("cluster-terminated")

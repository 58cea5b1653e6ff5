"""The sentence the project exists for, clicked: materializing the model validates what is upstream, trains on
two processes and registers; and where inputs are missing it says which, and they get built.

The pipeline is `store_demand`: synthetic, weekly, seconds to train.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from ml_assets.components.metadata import ASKED_BY
from ml_assets.model.evaluation.metrics.metrics import SERVING_NAMES
from ml_assets_tests.browser.dagster_pages import Launch, Pages, open_pages
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.browser.ui_process import running_ui

pytestmark = [pytest.mark.browser, pytest.mark.timeout(3000)]

MODEL = "store_demand/registered_model"
EMPTY_WEEK = "2024-01-01"
"""Clicked in an empty home: none of the 48 weeks it learns from exists, nor the sales below them."""
READY_WEEK = "2024-01-08"
"""The week after: its inputs were ingested before the click."""
FIVE_STEPS = ["validate_inputs", "snapshot", "train", "evaluate", "register"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with nothing in it."""
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def dagster(home: Path) -> Iterator[Dagster]:
    """The UI over that home."""
    with running_ui(home) as dagster:
        yield dagster


@pytest.fixture
def pages(browser: Browser, dagster: Dagster, screenshots: Path) -> Iterator[Pages]:
    """A tab."""
    with open_pages(browser, dagster.url, screenshots) as pages:
        yield pages


def _ingest(home: Path, table: str, week: str) -> None:
    """`ml-assets launch`, beside the running UI."""
    done = subprocess.run(
        [Path(sys.executable).with_name("ml-assets"), "launch", table, week],
        env=os.environ | {"ML_ASSETS_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _click(pages: Pages, dagster: Dagster, week: str, picture: str) -> tuple[Launch, str]:
    """Materialize only the registered model for `week`; what was launched, and the run's whole id."""
    pages.open_asset(MODEL)
    launch = pages.materialize(week, picture)
    pages.leave()
    (run_id,) = [run.id for run in dagster.runs() if run.id.startswith(launch.run)]
    return launch, run_id


def test_a_week_without_inputs_is_refused_and_its_chain_gets_built(pages: Pages, dagster: Dagster) -> None:
    """The error names the missing partitions."""
    _, run_id = _click(pages, dagster, EMPTY_WEEK, "unprepared")

    run = dagster.wait_for_run(run_id)
    assert run.status == "FAILURE"
    assert run.steps == {"store_demand.validate_inputs": "FAILURE"}
    said = dagster.messages(run_id)
    assert "features/sales_features 2023-02-06 to 2024-01-01, 48 in all (is missing)" in said
    assert "2023-02-06, 2023-02-13, 2023-02-20, " in said
    assert "2023-04-24 and 36 more" in said  # of 48, twelve are named
    pages.open_run(run_id)
    pages.shows(re.compile("refuses to build on unusable inputs"))
    pages.picture("run-refused")

    pages.leave()

    # No click from here on: the sensor asks for the missing chain, and the daemon builds it. Most of two minutes goes
    # by between tables: Dagster's backfill daemon looks every 30 s, which no setting changes.
    built = dagster.wait_for_runs_of(ASKED_BY, run_id, MODEL)
    assert {run.status for run in built} == {"SUCCESS"}
    assets = {asset for run in built for asset in run.assets}
    assert {"datasets/sales", "features/sales_features", MODEL} <= assets
    # One run per table, not one per week.
    assert len(built) == 3
    pages.open_asset(MODEL, view="partitions", partition=EMPTY_WEEK)
    pages.shows(EMPTY_WEEK)
    pages.picture("chain-built")


def test_one_click_on_the_model_validates_trains_and_registers(
    pages: Pages, dagster: Dagster, home: Path
) -> None:
    """The training runs in two processes."""
    for table in ("datasets/sales", "features/sales_features"):
        _ingest(home, table, READY_WEEK)
    launch, run_id = _click(pages, dagster, READY_WEEK, "ready")
    # The click was on one asset; the dialog says which three come along.
    for stage in ("training_set", "checkpoint", "evaluation"):
        assert f"store_demand / {stage}" in launch.dialogs[0]

    pages.open_run(run_id)
    pages.shows("loss")
    assert dagster.run(run_id).status == "STARTED"
    pages.picture("run-live")

    run = dagster.wait_for_run(run_id)
    assert run.status == "SUCCESS", dagster.messages(run_id)[-3000:]
    assert list(run.steps) == [f"store_demand.{step}" for step in FIVE_STEPS]
    assert set(run.steps.values()) == {"SUCCESS"}
    pages.shows("Success")
    pages.picture("run-done")

    pages.open_asset("store_demand/training_set")
    pages.shows("splits")
    pages.picture("asset-training-set")
    pages.open_asset("store_demand/checkpoint")
    pages.shows("world size")
    pages.picture("asset-checkpoint")
    pages.open_asset("store_demand/evaluation")
    pages.shows(re.compile("rmse"))
    pages.shows(re.compile("baseline"))
    pages.picture("asset-evaluation")
    pages.open_report("report")
    pages.show_markdown()
    pages.picture("asset-evaluation-summary")
    pages.open_asset("store_demand/evaluation")
    # Three metrics of the model, the naive baseline and the regression; latency and size.
    pages.show_plots("rmse", count=9 + len(SERVING_NAMES))
    pages.picture("asset-evaluation-plots")
    pages.open_asset("store_demand/evaluation", view="checks")
    pages.shows("gate")
    pages.picture("asset-evaluation-gate")
    pages.open_asset(MODEL)
    pages.shows(READY_WEEK)
    pages.picture("asset-registered-model")
    pages.open_asset("features/sales_features")
    pages.shows("units_mean_4w")
    pages.picture("asset-features")
    pages.open_report("partition-page", "tables", says="window 2023-02-13 to 2024-01-08")
    pages.open_asset("features/sales_features", view="checks")
    pages.shows("contract")
    pages.picture("asset-features-checks")
    # Nobody asked for the leakage test: its sensor did, once there were features.
    pages.page.get_by_text("leakage", exact=True).first.click()
    pages.shows(re.compile("no leak: "))
    pages.picture("asset-features-leakage")
    pages.open_lineage()
    pages.picture("lineage")

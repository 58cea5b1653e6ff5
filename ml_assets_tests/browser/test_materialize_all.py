"""A click on "Materialize all" of a group: tables and model in one run, and nothing is skipped.

The pipeline is that of the component tests, the readings, whose assets all have the same partitions.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from ml_assets.context.project import Project
from ml_assets_tests.browser.dagster_pages import open_pages
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.browser.ui_process import running_ui
from ml_assets_tests.components import readings_location
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.components.readings_pipeline import FIRST, MODEL, WINDOW, days
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings

pytestmark = [pytest.mark.browser, pytest.mark.timeout(3000)]

(DAY,) = days(1, start=WINDOW + 1)
"""The day after those of `Installation.with_tables(1)`."""
STEPS = {
    "datasets__readings",
    "features__shifts",
    "features__shifts__leakage",
    *(f"{MODEL}.{step}" for step in ("validate_inputs", "snapshot", "train", "evaluate", "register")),
}


@pytest.fixture(scope="module")
def dagster(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Iterator[Dagster]:
    """The UI of an installation that has everything but the last day. Made before the browser, whose event loop would
    disturb a run in this process."""
    home = tmp_path_factory.mktemp("installation")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    (home / readings_location.LATEST).write_text(FIRST.isoformat())
    settings = Settings(home=home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", "")  # `prepare_home` sets it
        prepare_home(settings)
        installation = Installation(home, settings=settings)
        installation.instance = Project(settings).instance
        installation.with_tables(1)
    with running_ui(home, readings_location.__name__) as dagster:
        yield dagster


def test_materialize_all_of_a_group_trains_in_one_run(
    dagster: Dagster, browser: Browser, screenshots: Path
) -> None:
    with open_pages(browser, dagster.url, screenshots) as pages:
        pages.open_group(readings_location.__name__, "default")
        launch = pages.materialize(DAY, "materialize-all")
        pages.leave()
        (run_id,) = [run.id for run in dagster.runs() if run.id.startswith(launch.run)]

        run = dagster.wait_for_run(run_id)
        assert run.status == "SUCCESS", dagster.messages(run_id)[-3000:]
        assert run.steps == dict.fromkeys(STEPS, "SUCCESS")
        pages.open_run(run_id)
        pages.shows(f"Succeeded ({len(STEPS)})")
        pages.picture("materialize-all-done")

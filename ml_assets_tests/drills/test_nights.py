"""Nights without a person: the daemon's own tick trains, from an empty home too."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import SENSOR_NAME_TAG

from ml_assets.components.checks.leakage import request_leakage_tests
from ml_assets.components.metadata import ASKED_BY
from ml_assets.context.project import Project
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.components.installation import STAGES, key_of
from ml_assets_tests.components.readings_location import LATEST
from ml_assets_tests.components.readings_pipeline import FEATURES, FIRST, MODEL, READINGS, WINDOW, days
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings

PATIENCE = 600.0
"""Seconds for a night. It takes 60 to 130, and half of that is the wait for the tick."""
FIRST_NIGHT, SECOND_NIGHT = days(2, start=WINDOW)
BEFORE_THE_FIRST = (FIRST - timedelta(days=1)).isoformat()

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def home(tmp_path: Path, _empty_tracker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, to which this process's Dagster points as well."""
    shutil.copy(_empty_tracker, tmp_path / "mlflow.db")
    monkeypatch.setenv("ML_ASSETS_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", "")
    return tmp_path


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The storage of a running daemon that has loaded the pipeline."""
    settings = Settings()
    prepare_home(settings)
    (home / LATEST).write_text(BEFORE_THE_FIRST)
    with (home / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                Path(sys.executable).with_name("dagster-daemon"),
                "run",
                "-m",
                "ml_assets_tests.components.readings_location",
            ],
            cwd=ROOT,
            env=os.environ | {"DAGSTER_HOME": str(settings.dagster_home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Project(settings).instance
    finally:
        daemon.terminate()
        daemon.wait(60)


def _night(home: Path, instance: dg.DagsterInstance, day: str) -> list[dg.DagsterRun]:
    """Declare `day` over; return the runs of its night, oldest first, once it is registered and all have ended.

    Leakage tests run beside a night whenever they are due; their runs are left out.
    """
    known = {run.run_id for run in instance.get_runs()}
    registered, *_ = reversed(STAGES)

    def begun() -> list[dg.DagsterRun]:
        runs = [record.dagster_run for record in reversed(instance.get_run_records())]
        return [run for run in runs if run.run_id not in known and not _is_leakage_test(run)]

    (home / LATEST).write_text(day)
    _wait_until(home, lambda: bool(begun()))
    (home / LATEST).write_text(BEFORE_THE_FIRST)  # the ticks of later minutes have nothing to do
    _wait_until(
        home,
        lambda: (
            day in instance.get_materialized_partitions(key_of(registered))
            and all(run.is_finished for run in begun())
        ),
    )
    return begun()


def _is_leakage_test(run: dg.DagsterRun) -> bool:
    return run.tags.get(SENSOR_NAME_TAG) == request_leakage_tests.name


def _wait_until(home: Path, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        log = (home / "daemon.log").read_text(errors="replace")
        assert time.monotonic() < deadline, log[-3000:]
        time.sleep(1.0)


@pytest.mark.nightly
def test_a_tick_trains_from_an_empty_home_and_the_next_night_in_one_run(
    home: Path, instance: dg.DagsterInstance
) -> None:
    """The first night lacks its window: the run names it, and the sensor requests the rest. The second is one run."""
    refused, *built = _night(home, instance, FIRST_NIGHT)
    assert (refused.job_name, refused.status) == (f"train_{MODEL}", dg.DagsterRunStatus.FAILURE)
    assert {run.status for run in built} == {dg.DagsterRunStatus.SUCCESS}
    assert {run.tags.get(ASKED_BY) for run in built} == {refused.run_id}
    assert len(built) == 3  # readings, features, the model

    (night,) = _night(home, instance, SECOND_NIGHT)
    assert (night.job_name, night.status) == (f"train_{MODEL}", dg.DagsterRunStatus.SUCCESS)
    for asset in (READINGS, FEATURES, *STAGES):
        made = instance.fetch_materializations(
            dg.AssetRecordsFilter(key_of(asset), asset_partitions=[SECOND_NIGHT]), limit=10
        )
        assert [record.run_id for record in made.records] == [night.run_id], asset

    def tests() -> list[dg.DagsterRun]:
        return [run for run in instance.get_runs() if _is_leakage_test(run)]

    _wait_until(home, lambda: bool(tests()) and all(run.is_finished for run in tests()))
    assert {run.status for run in tests()} == {dg.DagsterRunStatus.SUCCESS}

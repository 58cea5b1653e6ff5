"""A backfill as the daemon runs it: planned and started through the server of a code location."""

import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.backfill import BulkActionStatus

from ml_assets.components.metadata import PARTITION, RANGE_END, RANGE_START
from ml_assets.context.project import Project
from ml_assets.dagster_host.asset_graph import request_backfill
from ml_assets.dagster_host.yaml_documents import from_yaml, to_yaml
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.components.installation import key_of
from ml_assets_tests.components.readings_pipeline import FEATURES, READINGS, days
from ml_assets_tests.prepared_home import prepare_home
from ml_assets_tests.tables import divided_location
from resources.settings import Settings

ENDED = (BulkActionStatus.COMPLETED_SUCCESS, BulkActionStatus.COMPLETED_FAILED, BulkActionStatus.FAILED)
PATIENCE = 86400
"""Seconds for which Dagster waits for a server and a run: on a busy machine they start late."""


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_divided_backfill_lands_each_partition_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring days of a table are a run, and features wait for their readings."""
    monkeypatch.setenv("ML_ASSETS_HOME", str(tmp_path))
    settings = Settings(home=tmp_path)
    prepare_home(settings)
    config = settings.dagster_home / "dagster.yaml"
    set_up = from_yaml(config.read_text())
    set_up["run_monitoring"]["start_timeout_seconds"] = PATIENCE
    set_up["code_servers"] = {"local_startup_timeout": PATIENCE}
    config.write_text(to_yaml(set_up))
    instance = Project(settings).instance
    keys = days(5)
    graph = divided_location.defs().resolve_asset_graph()
    wanted = [AssetKeyPartitionKey(key_of(table), day) for table in (READINGS, FEATURES) for day in keys]
    request_backfill(instance, graph, wanted, backfill_id="all", title="", tags={})
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [Path(sys.executable).with_name("dagster-daemon"), "run", "-m", divided_location.__name__],
            cwd=ROOT,
            env=os.environ
            | {"DAGSTER_HOME": str(settings.dagster_home), "DAGSTER_GRPC_TIMEOUT_SECONDS": f"{PATIENCE}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while (found := instance.get_backfill("all")) is None or found.status not in ENDED:
            assert daemon.poll() is None, (tmp_path / "daemon.log").read_text()[-3000:]
            time.sleep(0.5)
    finally:
        daemon.terminate()
        daemon.wait()
    runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": "all"}))
    assert found.status == BulkActionStatus.COMPLETED_SUCCESS, (tmp_path / "daemon.log").read_text()[-3000:]
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    made = sorted(_span(run) for run in runs if run.asset_selection == {key_of(READINGS)})
    assert made == [(keys[0], keys[1]), (keys[2], keys[3]), (keys[4], keys[4])]
    reader = TableReader.at(Project(settings).platform.lake)
    assert reader.keys(READINGS) == reader.keys(FEATURES) == keys


def _span(run: dg.DagsterRun) -> tuple[str, str]:
    """Return first and last partition of a run."""
    alone = run.tags.get(PARTITION, "")
    return run.tags.get(RANGE_START, alone), run.tags.get(RANGE_END, alone)

"""Dagster's runs, events and step logs are on PostgreSQL and S3, for every machine, and nothing is left at home."""

import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.compute_log_manager import ComputeIOType

from ml_assets.context import HomeRefused
from ml_assets.context.home import dagster_settings
from ml_assets.context.project import Project
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.prepared_home import prepare_home
from ml_assets_tests.servers.installed.conftest import DAYS, Installed, newest_materialization
from ml_assets_tests.servers.running_servers import RunningServers
from resources.settings import Settings


@pytest.fixture
def instance(elsewhere: Settings) -> dg.DagsterInstance:
    """Return Dagster's instance, opened as another machine would open it."""
    prepare_home(elsewhere)
    return Project(elsewhere).instance


def _events(servers: RunningServers, installed: Installed, run_id: str, kind: str) -> int:
    database = str(installed.settings.dagster_url).rpartition("/")[2]
    wanted = f"run_id = '{run_id}' AND dagster_event_type = '{kind}'"
    return int(servers.query(f"SELECT count(DISTINCT partition) FROM event_logs WHERE {wanted}", database))


def test_another_machine_sees_runs_partitions_and_data_versions(
    installed: Installed, instance: dg.DagsterInstance
) -> None:
    assert {run.run_id for run in instance.get_runs()} >= set(installed.runs)
    key = dg.AssetKey(readings_pipeline.READINGS.split("/"))
    assert instance.get_materialized_partitions(key) == set(DAYS)
    newest = newest_materialization(instance, readings_pipeline.READINGS)
    assert newest.partition == DAYS[-1]
    assert len((newest.tags or {})["dagster/data_version"]) == 64
    assert {"profile", "lake/commit"} <= newest.metadata.keys()


def test_every_partition_was_planned_and_materialized_once(
    installed: Installed, servers: RunningServers
) -> None:
    for run_id in installed.runs[:2]:
        assert _events(servers, installed, run_id, "ASSET_MATERIALIZATION_PLANNED") == len(DAYS)
        assert _events(servers, installed, run_id, "ASSET_MATERIALIZATION") == len(DAYS)


def test_nothing_of_it_is_in_a_file_at_home(installed: Installed) -> None:
    assert list(installed.settings.dagster_home.rglob("*.db")) == []
    assert list(installed.settings.home.glob("*.db")) == []


def test_what_a_step_printed_is_read_on_another_machine(
    installed: Installed, instance: dg.DagsterInstance
) -> None:
    @dg.op
    def speak() -> None:
        sys.stdout.write("a line of the step\n")
        sys.stdout.flush()

    @dg.job
    def speaking() -> None:
        speak()

    run = speaking.execute_in_process(instance=installed.installation.instance)
    (event,) = [one for one in run.all_events if one.event_type_value == "LOGS_CAPTURED"]
    file_key = event.event_specific_data.file_key
    name = f"step-logs/storage/{run.run_id}/compute_logs/{file_key}.out"
    assert installed.installation.platform.artifacts.files("step-logs").keys() >= {
        name.removeprefix("step-logs/")
    }
    manager = instance.compute_log_manager
    key = [run.run_id, "compute_logs", file_key]
    data = manager.get_log_data_for_type(key, ComputeIOType.STDOUT, offset=0, max_bytes=None)
    assert data[0] == b"a line of the step\n"


def test_server_that_was_restarted_between_two_runs_is_not_noticed(
    installed: Installed, servers: RunningServers
) -> None:
    @dg.op
    def nothing() -> None: ...

    @dg.job
    def small() -> None:
        nothing()

    assert small.execute_in_process(instance=installed.installation.instance).success
    servers.kill("postgresql")
    servers.restart("postgresql")
    assert small.execute_in_process(instance=installed.installation.instance).success


def test_server_that_does_not_answer_is_named_without_its_password(
    elsewhere: Settings, servers: RunningServers
) -> None:
    prepare_home(elsewhere)
    servers.stop("postgresql")
    with pytest.raises(HomeRefused, match=r"check that PostgreSQL runs.*ML_ASSETS_DAGSTER_URL") as caught:
        _ = Project(elsewhere).instance
    assert servers.secrets["database_password"] not in str(caught.value)


def test_settings_file_follows_the_settings_until_a_person_changes_it(tmp_path: Path) -> None:
    embedded = Settings(home=tmp_path, dagster_url=None, artifacts_url=None)
    on_servers = embedded.model_copy(
        update={"dagster_url": "postgresql+psycopg2://u:secret@host/d", "artifacts_url": "s3://bucket/a/b"}
    )
    path = embedded.dagster_home / "dagster.yaml"
    for settings, held in ((embedded, False), (on_servers, True), (embedded, False), (on_servers, True)):
        prepare_home(settings)
        assert dagster_settings(settings) in path.read_text()
        assert ("ML_ASSETS_DAGSTER_URL" in path.read_text()) is held
        assert ("a/b/step-logs" in path.read_text()) is held
    assert "u:secret" not in path.read_text()
    path.write_text(path.read_text() + "\n# mine\n")
    prepare_home(embedded)
    assert path.read_text().endswith("# mine\n")
    path.write_text("telemetry: {enabled: true}\n")
    with pytest.raises(HomeRefused, match=r"by hand .*ML_ASSETS_DAGSTER_URL"):
        prepare_home(on_servers)

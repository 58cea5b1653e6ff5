"""Each server killed in the middle of a small pipeline and started again: the run survives, or the same commands
again finish it, and everything is as if nothing had happened, and as on one machine without any server.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_assets_tests.faults import pipeline_commands
from ml_assets_tests.faults.child_processes import finish
from ml_assets_tests.faults.demand_project import MODEL, DemandProject
from ml_assets_tests.faults.kill_points import KillPoint
from ml_assets_tests.faults.pipeline_facts import PipelineFacts, assert_sound, facts_of
from ml_assets_tests.prepared_home import prepare_home
from ml_assets_tests.servers.running_servers import RunningServers
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import open_client

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]

AWAY_SECONDS = 3.0
"""A killed server is away for so long, and then as long as it takes to start."""
PATIENCE = 240.0
"""Seconds everything may take once; on an idle machine it needs a tenth."""
KILL_POINTS = {
    "s3": [KillPoint("ingest", 40), KillPoint("train", 25)],
    "postgresql": [KillPoint("features", 30), KillPoint("evaluate", 15)],
    "lakefs": [KillPoint("ingest", 60), KillPoint("snapshot", 30)],
    "mlflow": [KillPoint("train", 20), KillPoint("register", 10)],
}
"""Server → when it is killed. The middle of phases in which it is needed."""


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> PipelineFacts:
    """Facts of one machine without servers."""
    home = tmp_path_factory.mktemp("embedded") / "home"
    finish(pipeline_commands.start_all(home), seconds=PATIENCE)
    project = DemandProject.at(home)
    assert_sound(project)
    return facts_of(project)


@pytest.fixture
def settings(servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """An installation on the servers with nothing in it yet."""
    settings = servers.settings(tmp_path / "home")
    for name, value in servers.variables(settings).items():
        monkeypatch.setenv(name, value)  # Dagster's own settings name variables
    prepare_home(settings)
    assert Platform(settings).make_lake_ready()
    _forget_model(settings)
    yield settings
    servers.up()
    _forget_model(settings)


@pytest.mark.parametrize("name", KILL_POINTS)
def test_a_killed_server_costs_nothing_but_time(
    servers: RunningServers,
    settings: Settings,
    embedded: PipelineFacts,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    variables = servers.variables(settings)
    command = pipeline_commands.start_pausing(variables, KILL_POINTS[name])
    killed = _kill_when_it_rings(servers, name, command)
    survived = command.process.exitcode == 0
    phases = [point.phase for point in KILL_POINTS[name]]
    assert killed == phases if survived else killed in (phases, phases[:1])
    record_property("killed in", ", ".join(killed))
    record_property("ended by", "the run itself" if survived else "the same commands again")
    if not survived:  # it gave up, saying why and not only how often it tried: the same commands again
        assert "Exceeded max_retries" not in command.output.read_text()
        finish(pipeline_commands.start_pausing(variables), seconds=PATIENCE)
    project = DemandProject(settings)
    assert_sound(project)
    assert facts_of(project) == embedded


def _kill_when_it_rings(
    servers: RunningServers, name: str, command: pipeline_commands.PausingCommand
) -> list[str]:
    """Kill the server at each ring and start it again; returns the phases in which it rang."""
    phases: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while command.process.is_alive() and time.monotonic() < deadline:
        if not command.bell.poll(0.1):
            continue
        try:
            phases.append(command.bell.recv())
        except EOFError:
            break
        servers.kill(name)
        command.bell.send("go on")
        time.sleep(AWAY_SECONDS)
        servers.restart(name)
    command.end(max(1.0, deadline - time.monotonic()))
    return phases


def _forget_model(settings: Settings) -> None:
    """All tests share one MLflow, and experiments and registered models are named like the model."""
    client = open_client(settings.resolved_tracking_uri.reveal())
    if (experiment := client.get_experiment_by_name(MODEL)) is not None:
        client.rename_experiment(experiment.experiment_id, f"{MODEL} {settings.environment} {time.time_ns()}")
        client.delete_experiment(experiment.experiment_id)
    if client.search_registered_models(f"name = '{MODEL}'"):
        client.delete_registered_model(MODEL)

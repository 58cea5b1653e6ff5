"""Each server killed in the middle of a small pipeline and started again: the run survives, or the same commands
again finish it, and everything is as if nothing had happened, and as on one machine without any server.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_assets.cli.project import prepare_home
from ml_assets_tests.chaos.installation import Facts, assert_sound, facts_of
from ml_assets_tests.chaos.moments import Moment
from ml_assets_tests.chaos.shop import MODEL, Shop
from ml_assets_tests.servers.pipeline import person
from ml_assets_tests.servers.running_servers import RunningServers
from resources.mlflow_client import open_client
from resources.platform import Platform
from resources.settings import Settings

pytestmark = pytest.mark.timeout(600)

AWAY_SECONDS = 3.0
"""A killed server is away for so long, and then as long as it takes to start."""
PATIENCE = 240.0
"""Seconds everything may take once; on an idle machine it needs a tenth."""
MOMENTS = {
    "s3": [Moment("ingest", 40), Moment("train", 25)],
    "postgresql": [Moment("features", 30), Moment("evaluate", 15)],
    "lakefs": [Moment("ingest", 60), Moment("snapshot", 30)],
    "mlflow": [Moment("train", 20), Moment("register", 10)],
}
"""Server → when it is killed. The middle of phases in which it is needed."""


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Facts of one machine without servers."""
    home = tmp_path_factory.mktemp("embedded") / "home"
    _finish(person.start({"ML_ASSETS_HOME": str(home), "ML_ASSETS_AUTHOR": "ada"}))
    shop = Shop.at(home)
    assert_sound(shop)
    return facts_of(shop)


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


@pytest.mark.parametrize("name", MOMENTS)
def test_a_killed_server_costs_nothing_but_time(
    servers: RunningServers,
    settings: Settings,
    embedded: Facts,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    variables = servers.variables(settings)
    someone = person.start(variables, MOMENTS[name])
    killed = _kill_when_it_rings(servers, name, someone)
    survived = someone.process.exitcode == 0
    phases = [moment.phase for moment in MOMENTS[name]]
    assert killed == phases if survived else killed in (phases, phases[:1])
    record_property("killed in", ", ".join(killed))
    record_property("ended by", "the run itself" if survived else "the same commands again")
    if not survived:  # it gave up, saying why and not only how often it tried: the same commands again
        assert "Exceeded max_retries" not in someone.said.read_text()
        _finish(person.start(variables))
    shop = Shop(settings)
    assert_sound(shop)
    assert facts_of(shop) == embedded


def _kill_when_it_rings(servers: RunningServers, name: str, someone: person.Person) -> list[str]:
    """Kill the server at each ring and start it again; returns the phases in which it rang."""
    phases: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while someone.process.is_alive() and time.monotonic() < deadline:
        if not someone.bell.poll(0.1):
            continue
        try:
            phases.append(someone.bell.recv())
        except EOFError:
            break
        servers.kill(name)
        someone.bell.send("go on")
        time.sleep(AWAY_SECONDS)
        servers.restart(name)
    someone.process.join(max(1.0, deadline - time.monotonic()))
    _end(someone)
    return phases


def _finish(someone: person.Person) -> None:
    """Wait for a process that has to succeed."""
    someone.process.join(PATIENCE)
    _end(someone)
    assert someone.process.exitcode == 0, someone.said.read_text()[-4000:]


def _end(someone: person.Person) -> None:
    hangs = someone.process.is_alive()
    someone.process.kill()
    someone.process.join()
    assert not hangs, f"no end after {PATIENCE:.0f} s:\n{someone.said.read_text()[-4000:]}"


def _forget_model(settings: Settings) -> None:
    """All tests share one MLflow, and experiments and registered models are named like the model."""
    client = open_client(settings.resolved_tracking_uri.reveal())
    if (experiment := client.get_experiment_by_name(MODEL)) is not None:
        client.rename_experiment(experiment.experiment_id, f"{MODEL} {settings.environment} {time.time_ns()}")
        client.delete_experiment(experiment.experiment_id)
    if client.search_registered_models(f"name = '{MODEL}'"):
        client.delete_registered_model(MODEL)

"""One small installation on the real servers, in which a model was made, for all tests that look at what it left."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ml_assets.context.project import Project
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import (
    Installation,
    failure_of,
    key_of,
    materialized,
    readings_components,
)
from ml_assets_tests.prepared_home import prepare_home
from ml_assets_tests.servers.running_servers import RunningServers
from resources.settings import Settings

DAY = readings_pipeline.days(1, start=readings_pipeline.WINDOW)[0]
DAYS = readings_pipeline.days(readings_pipeline.WINDOW + 1)
STAGES = ("training_set", "checkpoint", "evaluation", "registered_model")


@dataclass(frozen=True)
class Installed:
    """An installation on the servers after its first model."""

    installation: Installation
    model: str
    """A name of its own: the tracker is shared."""
    variables: Mapping[str, str]
    """Environment that gives another process the same settings."""
    facts: Mapping[str, Mapping[str, Any]]
    """Stage → metadata of its materialization, as plain values."""
    runs: tuple[str, ...]
    """Dagster's ids of the three runs: readings, features, model."""

    @property
    def settings(self) -> Settings:
        """Return the settings of the installation."""
        return self.installation.settings

    def train_again(self) -> Mapping[str, Mapping[str, Any]]:
        """Materialize the model once more."""
        return _train(self.installation, self.model)[1]


@pytest.fixture(scope="session")
def installed(servers: RunningServers, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Readings, features and a model of one day: lakeFS, S3, PostgreSQL, MLflow, Dagster's storage.

    The database with `-trained` behind its name keeps the ledger as it is now, before any test decides something.
    """
    settings = servers.settings(tmp_path_factory.mktemp("installed") / "home")
    model = f"throughput_{uuid.uuid4().hex[:8]}"
    variables = servers.variables(settings)
    with pytest.MonkeyPatch.context() as patch:
        _set(patch, variables)
        prepare_home(settings)
        installation = Installation(settings.home, readings_components(pipeline={"name": model}), settings)
        installation.platform.make_lake_ready()
        installation.instance = Project(settings).instance
        runs: list[str] = []
        for table in (readings_pipeline.READINGS, readings_pipeline.FEATURES):
            result = installation.run(table, partition=DAYS[0], last=DAYS[-1])
            assert result.success, failure_of(result)
            runs.append(result.run_id)
        run_id, facts = _train(installation, model)
    ledger = settings.resolved_ledger_url.reveal().rpartition("/")[2]
    servers.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{ledger}'")
    servers.query(f'CREATE DATABASE "{ledger}-trained" TEMPLATE "{ledger}"')
    return Installed(installation, model, variables, facts, (*runs, run_id))


@pytest.fixture(autouse=True)
def _its_variables(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, installed.variables)


@pytest.fixture
def elsewhere(installed: Installed, tmp_path: Path) -> Settings:
    """Another machine with the same servers and an empty home."""
    return installed.settings.model_copy(update={"home": tmp_path / "elsewhere"})


def _set(patch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        patch.setenv(name, value)
    patch.setenv("DAGSTER_EVENT_BATCH_SIZE", "400")
    patch.setenv("DAGSTER_HOME", str(Path(variables["ML_ASSETS_HOME"]) / "dagster"))


def _train(installation: Installation, model: str) -> tuple[str, dict[str, dict[str, Any]]]:
    names = [f"{model}/{stage}" for stage in STAGES]
    result = installation.run(*names, partition=DAY)
    assert result.success, failure_of(result)
    return result.run_id, {
        stage: {fact: value.value for fact, value in found[DAY].metadata.items()}
        for stage, name in zip(STAGES, names, strict=True)
        if DAY in (found := materialized(result, name))
    }


def newest_materialization(instance: dg.DagsterInstance, name: str) -> dg.AssetMaterialization:
    """Return the newest materialization of asset `a/b` in Dagster's storage."""
    event = instance.get_latest_materialization_event(key_of(name))
    assert event is not None
    assert event.asset_materialization is not None
    return event.asset_materialization

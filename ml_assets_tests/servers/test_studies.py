"""Studies on a real PostgreSQL: Optuna's tables lie in their own schema beside the ledger's, and a study continues,
also after a restart of the server."""

import json
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
import sqlalchemy as sa
from optuna.storages import InMemoryStorage

from ml_assets.extras.tuning.study import Study, StudyFacts
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.study_result import TrialOutcome
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.tuning.processes import study_worker
from resources.database_errors import StudiesUnavailable
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.studies import SCHEMA, open_storage

SECTION = TuningSection.model_validate(
    {"space": {"training": {"learning_rate": {"kind": "float", "low": 1e-4, "high": 0.1}}}, "trials": 2}
)
FACTS = StudyFacts(model="shop", partition="2024-01-20", snapshot="2" * 64, decided_by={})


def _study(settings: Settings) -> Study:
    """Open the study as another process does."""
    platform = Platform(settings)
    with platform.ledger.turn("studies"):
        return Study(platform.studies, "shop-1", SECTION, 7, FACTS, 3)


def test_a_running_study_waits_for_a_server_that_restarts(servers: RunningServers, tmp_path: Path) -> None:
    settings = servers.settings(tmp_path)
    storage = open_storage(settings.studies_url, patience_seconds=200)
    study = Study(storage, "shop-1", SECTION, 7, FACTS, 3)
    begun = study.next()
    assert begun is not None
    servers.kill("postgresql")
    reporting = threading.Thread(target=lambda: study.should_pause(begun, 1, 0.5))
    reporting.start()
    reporting.join(1.0)
    assert reporting.is_alive()  # it waits
    servers.restart("postgresql")
    reporting.join(200)
    ended = TrialOutcome(
        number=begun.number, parameters=begun.parameters, state="finished", validation_loss=1.0
    )
    study.end(begun, ended)
    assert [one.curve for one in _study(settings).outcomes()] == [((1, 0.5),)]


def test_a_database_that_stays_away_is_named_without_its_password(
    servers: RunningServers, tmp_path: Path
) -> None:
    """Also by a study that has run for a while."""
    address = servers.settings(tmp_path).studies_url
    study = Study(open_storage(address, patience_seconds=0.5), "shop-1", SECTION, 7, FACTS, 3)
    servers.kill("postgresql")
    for use in (study.next, lambda: open_storage(address, patience_seconds=0.5)):
        with pytest.raises(StudiesUnavailable, match="ML_ASSETS_LEDGER_URL") as caught:
            use()
        assert f"the database of studies, {address}, does not answer" in str(caught.value)
        assert servers.secrets["database_password"] not in str(caught.value)


def test_a_study_continues_beside_the_ledger(servers: RunningServers, tmp_path: Path) -> None:
    settings = servers.settings(tmp_path)
    begun = _study(settings).next()
    assert begun is not None
    study = _study(settings)
    assert study.next() == begun
    ended = TrialOutcome(
        number=begun.number, parameters=begun.parameters, state="finished", validation_loss=1.0
    )
    study.end(begun, ended)
    assert _study(settings).outcomes() == [ended]

    engine = sa.create_engine(settings.studies_url.reveal())
    with engine.connect() as connection:
        query = sa.text("select schemaname from pg_tables where tablename in ('trials', 'ledger_verdicts')")
        assert set(connection.execute(query).scalars()) == {SCHEMA, "public"}
    engine.dispose()


def test_several_processes_run_one_study_to_its_end(servers: RunningServers, tmp_path: Path) -> None:
    """As on SQLite: each reads the record of a trial and writes to it in one turn, here of PostgreSQL."""
    study = Study(
        InMemoryStorage(), "shop-1", study_worker.SECTION, 7, study_worker.FACTS, study_worker.EPOCHS
    )
    expected = json.loads(json.dumps([asdict(one) for one in study_worker.run(study)]))
    ledger = servers.settings(tmp_path).resolved_ledger_url.reveal()
    assert study_worker.together(tmp_path, 3, {"ML_ASSETS_LEDGER_URL": ledger}) == [expected] * 3

"""Studies on a real PostgreSQL: Optuna's tables lie in their own schema beside the ledger's, and a study continues."""

from pathlib import Path

import sqlalchemy as sa

from ml_assets.tuning.spec import TuningSection
from ml_assets.tuning.study import Study, StudyFacts
from ml_assets.tuning.study_result import TrialOutcome
from ml_assets_tests.servers.running_servers import RunningServers
from resources.platform import Platform
from resources.settings import Settings
from resources.studies import SCHEMA

SECTION = TuningSection.model_validate(
    {"space": {"training": {"learning_rate": {"kind": "float", "low": 1e-4, "high": 0.1}}}, "trials": 2}
)
FACTS = StudyFacts(model="shop", partition="2024-01-20", snapshot="2" * 64, decided_by={})


def _study(settings: Settings) -> Study:
    """Open the study as another process does."""
    platform = Platform(settings)
    with platform.ledger.turn("studies"):
        return Study(platform.studies, "shop-1", SECTION, 7, FACTS, 3)


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

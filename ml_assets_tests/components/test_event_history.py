"""The event history that Dagster keeps of a table: how much disk it takes, and that none of it is lacking."""

from pathlib import Path

import dagster as dg
import pytest

from ml_assets.context.project import Project
from ml_assets_tests.components.installation import Installation, key_of
from ml_assets_tests.components.readings_pipeline import READINGS, days
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings

DAYS = days(91)
ROUNDS = 4
BYTES_A_MATERIALIZATION = 5_000
"""Bar. Dagster's own SQLite storage takes 18,900 (`benchmarks/claims/data/event_history.py`)."""


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """An installation whose events go where `dagster.yaml` says."""
    monkeypatch.setenv("DAGSTER_HOME", "")  # `prepare_home` sets it, and how many events are written at once
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "400")
    installation = Installation(tmp_path)
    prepare_home(installation.settings)
    installation.instance = Project(installation.settings).instance
    return installation


def _bytes(settings: Settings) -> int:
    return sum(path.stat().st_size for path in settings.dagster_home.rglob("*") if path.is_file())


@pytest.mark.nightly
def test_a_materialization_takes_little_disk_and_is_found_again(installation: Installation) -> None:
    before = _bytes(installation.settings)
    for _ in range(ROUNDS):
        assert installation.run(READINGS, partition=DAYS[0], last=DAYS[-1]).success
    each = (_bytes(installation.settings) - before) / (ROUNDS * len(DAYS))
    assert each <= BYTES_A_MATERIALIZATION, f"{each:.0f} bytes"

    assert installation.instance.get_materialized_partitions(key_of(READINGS)) == set(DAYS)
    (newest,) = installation.instance.fetch_materializations(key_of(READINGS), limit=1).records
    assert newest.partition_key == DAYS[-1]
    status = installation.instance.get_status_by_partition(key_of(READINGS), DAYS, _partitions(installation))
    assert status is not None
    assert set(status.values()) == {dg.AssetPartitionStatus.MATERIALIZED}


def _partitions(installation: Installation) -> dg.PartitionsDefinition:
    partitions = installation.defs.resolve_asset_graph().get(key_of(READINGS)).partitions_def
    assert partitions is not None
    return partitions

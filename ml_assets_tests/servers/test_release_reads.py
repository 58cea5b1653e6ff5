"""Reads of versions on real PostgreSQL and MLflow: killed servers cost no read, and no answer is wrong."""

import hashlib
from pathlib import Path

import polars as pl
import pytest

from ml_assets.release.of_platform import releases_of
from ml_assets_tests.faults.registry_reads import in_words, read_while_killed
from ml_assets_tests.release.conftest import rows
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.serving.released import register
from resources.platform import Platform

__all__ = ["rows"]  # fixture


@pytest.mark.timeout(600)
def test_killed_servers_cost_no_read_and_no_answer_is_wrong(
    servers: RunningServers, tmp_path: Path, rows: pl.DataFrame
) -> None:
    """The ten minutes of it are `benchmarks/registry_reads`."""
    settings = servers.settings(tmp_path / "home", lake_url=None)
    model = f"read_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    platform = Platform(settings)
    for number in (1, 2, 3):
        register(platform, rows, str(number), model)
        releases_of(platform).promote(model, number, author="ada", reason="for the readers")
    outcome = read_while_killed(
        model,
        settings,
        servers.storage_env,
        tmp_path / "reads",
        reads=200,
        clients=2,
        seconds=5,
        kills=2,
        kill=servers.kill,
        restart=servers.restart,
        down_seconds=(0.2, 0.5),
    )
    said = in_words(outcome)
    print(said)
    assert (outcome.wrong, outcome.refused) == ([], []), said
    assert outcome.answered == 200
    assert outcome.stale > 0
    assert outcome.decided > 0

"""A source of readings and an installation for every test."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import Installation


@pytest.fixture(autouse=True)
def source() -> Iterator[readings_pipeline.Source]:
    """The source of the readings: a test may spoil it, the next one finds it mended."""
    readings_pipeline.SOURCE.mend()
    yield readings_pipeline.SOURCE
    readings_pipeline.SOURCE.mend()


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """An empty installation with the three components of the readings."""
    return Installation(tmp_path)


@pytest.fixture(scope="module")
def shared_installation(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Installation:
    """An installation that the tests of a module share, with a tracker that need not be made first."""
    home = tmp_path_factory.mktemp("installation")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    return Installation(home)

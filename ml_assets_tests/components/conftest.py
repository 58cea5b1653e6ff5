"""A plant and an installation of their own for every test."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets_tests.components import plant
from ml_assets_tests.components.world import World


@pytest.fixture(autouse=True)
def source() -> Iterator[plant.Source]:
    """The plant's system: a test may spoil it, the next one finds it mended."""
    plant.SOURCE.mend()
    yield plant.SOURCE
    plant.SOURCE.mend()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty installation with the plant's three components."""
    return World(tmp_path)


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> World:
    """An installation that the tests of a module share, with a tracker that need not be made first."""
    home = tmp_path_factory.mktemp("installation")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    return World(home)

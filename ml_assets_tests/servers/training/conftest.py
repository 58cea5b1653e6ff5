"""An S3 server for the tests of a module, and this process pointed at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets_tests.servers.training.s3_server import OwnS3Server, running


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnS3Server]:
    """Return storage in a folder on the machine's disk."""
    home = tmp_path_factory.mktemp("s3")
    with running(home / "objects", home / "s3.log") as storage:
        yield storage


@pytest.fixture
def _point_at_storage(storage: OwnS3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(storage, monkeypatch)


def point_at(storage: OwnS3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients of this process find `storage`."""
    for name, value in storage.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def remote(storage: OwnS3Server, _point_at_storage: None, tmp_path: Path) -> str:
    """Address that nobody else uses."""
    return f"{storage.url}/{tmp_path.name}"

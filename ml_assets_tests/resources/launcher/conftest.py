"""An API server for launchers, and the way to it; an object store; a launcher between both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets_tests.resources.launcher.api_server import ApiServer, serving
from ml_assets_tests.resources.launcher.launched_here import LaunchedHere
from ml_assets_tests.resources.launcher.object_store import ObjectStore, storing


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Empty, and named by KUBECONFIG."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with serving() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with storing() as store:
        yield store


@pytest.fixture
def launch(api: ApiServer, store: ObjectStore, tmp_path: Path) -> LaunchedHere:
    return LaunchedHere(store, tmp_path / "launch")

"""An API server for launchers, and the way to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets_tests.resources.launcher.api_server import ApiServer, serving


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Empty, and named by KUBECONFIG."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with serving() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server

"""Repositories on the real lakeFS: a fresh one for each test that asks."""

import uuid
from pathlib import Path

import pytest

from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.servers.running_servers import RunningServers


@pytest.fixture
def repository(servers: RunningServers, tmp_path: Path) -> Repository:
    """A name no repository has yet, on the real server, with a cache of its own."""
    return Repository(servers, f"test-{uuid.uuid4().hex[:16]}", tmp_path / "cache")

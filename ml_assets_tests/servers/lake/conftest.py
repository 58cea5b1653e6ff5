"""Repositories on the real lakeFS: a fresh one for each test that asks."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets_tests.servers.lake.repositories import Repository, Servers


@pytest.fixture
def repository(servers: Servers, tmp_path: Path) -> Repository:
    """A name no repository has yet, on the real server, with a cache of its own."""
    return Repository(servers, f"test-{uuid.uuid4().hex[:16]}", tmp_path / "cache")


@pytest.fixture
def another(servers: Servers, tmp_path: Path) -> Callable[[Repository, str], Repository]:
    """The same repository as another machine sees it: with another cache."""

    def see(repository: Repository, name: str) -> Repository:
        return Repository(servers, repository.name, tmp_path / name)

    return see

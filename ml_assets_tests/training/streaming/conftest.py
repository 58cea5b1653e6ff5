"""Common parts of the tests of shards that come and go."""

import pytest

from ml_assets.data.snapshots.split_reader import Shard, Snapshot
from ml_assets_tests.training.text_snapshots import text_snapshot


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Ten shards to train on, each an Arrow file and an archive of blobs."""
    return text_snapshot(tmp_path_factory.mktemp("snapshots"), shard_bytes=20_000)


@pytest.fixture
def shards(snapshot: Snapshot) -> tuple[Shard, ...]:
    return snapshot.shards_of("train")

"""Files that are written straight to a real S3 server: whole there or absent, and never whole in memory."""

import contextlib
import hashlib
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from ml_assets.model.training.data.streaming import open_artifacts
from ml_assets_tests.servers.training.s3_server import OwnS3Server
from resources.artifacts import Artifacts, ArtifactsError, ArtifactsUnavailable
from resources.artifacts.s3 import IN_FLIGHT, UPLOAD_PART


@pytest.fixture
def artifacts(remote: str, tmp_path: Path) -> Artifacts:
    return open_artifacts(remote, tmp_path / "cache", patience_seconds=2.0)


def half_parts(storage: OwnS3Server) -> list[Path]:
    """Parts of uploads that neither ended nor were given up, as the server keeps them."""
    return [path for path in storage.folder.rglob(".sgwtmp/multipart/**/*") if path.is_file()]


@pytest.mark.parametrize("size", [0, 1000, UPLOAD_PART, UPLOAD_PART + 1, 3 * UPLOAD_PART + 5])
def test_what_is_written_is_there_when_the_block_ends(artifacts: Artifacts, size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    with artifacts.create("job", "deep/part") as file:
        for at in range(0, size, 7_000_001):
            file.write(memoryview(content)[at : min(at + 7_000_001, size)])
        assert artifacts.files("job") == {}
    assert artifacts.files("job") == {"deep/part": size}
    there = (artifacts.pull("job") / "deep/part").read_bytes()
    assert hashlib.sha256(there).digest() == hashlib.sha256(content[:size]).digest()


def test_memory_holds_a_few_parts_of_a_large_file(artifacts: Artifacts) -> None:
    block = bytes(UPLOAD_PART)
    tracemalloc.start()
    try:
        with artifacts.create("job", "large") as file:
            for _ in range(6 * IN_FLIGHT):
                file.write(block)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert artifacts.files("job") == {"large": 6 * IN_FLIGHT * UPLOAD_PART}
    # Those on their way, each with the client's copy, the test's, and two that fill.
    assert peak < (2 * IN_FLIGHT + 3) * UPLOAD_PART


def test_a_block_that_raises_leaves_neither_file_nor_parts(
    artifacts: Artifacts, storage: OwnS3Server
) -> None:
    with contextlib.suppress(KeyError), artifacts.create("job", "large") as file:
        file.write(bytes(2 * UPLOAD_PART))
        raise KeyError
    assert artifacts.files("job") == {}
    assert half_parts(storage) == []


_WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from ml_assets.model.training.data.streaming import open_artifacts
from resources.artifacts.s3 import UPLOAD_PART
with open_artifacts(sys.argv[1], Path(sys.argv[2])).create("job", "large") as file:
    file.write(bytes(2 * UPLOAD_PART))
    [sent.result() for sent in file._sent]
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_parts_that_a_killed_process_left_are_given_up_by_the_next(
    artifacts: Artifacts, storage: OwnS3Server, remote: str, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-c", _WRITE_AND_DIE, remote, str(tmp_path / "other")], check=False)
    assert half_parts(storage) != []
    artifacts.abort_uploads("another job")
    assert half_parts(storage) != []
    artifacts.abort_uploads("job")
    assert half_parts(storage) == []
    assert artifacts.files("job") == {}


def test_a_server_that_goes_away_meanwhile_is_named(artifacts: Artifacts, storage: OwnS3Server) -> None:
    with pytest.raises(ArtifactsUnavailable, match="did not answer"):
        write_while_it_is_away(artifacts, storage)
    artifacts.abort_uploads("job")
    assert artifacts.files("job") == {}
    assert half_parts(storage) == []


def write_while_it_is_away(artifacts: Artifacts, storage: OwnS3Server) -> None:
    with artifacts.create("job", "large") as file:
        file.write(bytes(UPLOAD_PART))
        storage.kill()
        try:
            for _ in range(2 * IN_FLIGHT):
                file.write(bytes(UPLOAD_PART))
        finally:
            storage.start()


@pytest.mark.usefixtures("_point_at_storage")
def test_a_bucket_that_is_not_there_is_named(tmp_path: Path) -> None:
    artifacts = open_artifacts("s3://nowhere/prefix", tmp_path, patience_seconds=2.0)
    with (
        pytest.raises(ArtifactsError, match="s3://nowhere/prefix does not exist"),
        artifacts.create("job", "a") as file,
    ):
        file.write(b"a")

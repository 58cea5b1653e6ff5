"""Folders on real S3: what was pushed is found by others, whole, whatever happens on the way."""

import hashlib
import multiprocessing
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from ml_assets_tests.servers.running_servers import RunningServers
from resources.artifacts import (
    ArtifactMissing,
    Artifacts,
    ArtifactsRefused,
    ArtifactsUnavailable,
    FolderArtifacts,
    artifacts_of,
)
from resources.artifacts.s3 import PART, RemoteArtifacts


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"s3://artifacts/t-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]}"


@pytest.fixture(params=["folder", "s3"])
def here(request: pytest.FixtureRequest, servers: RunningServers, tmp_path: Path, url: str) -> Artifacts:
    """The same promises in both homes."""
    if request.param == "folder":
        return FolderArtifacts(tmp_path / "here")
    return _remote(servers, url, tmp_path / "here")


@pytest.fixture
def remote(servers: RunningServers, url: str, tmp_path: Path) -> RemoteArtifacts:
    return _remote(servers, url, tmp_path / "here")


@pytest.fixture
def elsewhere(servers: RunningServers, url: str, tmp_path: Path) -> RemoteArtifacts:
    """Another machine with the same settings."""
    return _remote(servers, url, tmp_path / "elsewhere")


def _remote(servers: RunningServers, url: str, cache: Path, patience: float = 20.0) -> RemoteArtifacts:
    made = artifacts_of(url, cache, servers.record.url("s3"), patience)
    assert isinstance(made, RemoteArtifacts)
    return made


def _fill(artifacts: Artifacts, name: str, files: dict[str, bytes]) -> Path:
    folder = artifacts.folder(name)
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


FILES = {"a.bin": b"one", "deep/er/b.bin": b"two", "empty": b"", "mit Leerzeichen und ü.txt": b"three"}


def test_both_homes_keep_what_they_promise(here: Artifacts, tmp_path: Path) -> None:
    name = "bundles/1f2e"
    assert not here.exists(name)
    assert here.files(name) == {}
    with pytest.raises(ArtifactMissing, match="creates bundles/1f2e again"):
        here.pull(name)
    folder = _fill(here, name, FILES)
    assert here.push(name, last="a.bin") == here.address(name)
    assert here.files(name) == {file: len(content) for file, content in sorted(FILES.items())}
    assert here.exists(name)
    assert here.exists(name, "deep/er/b.bin")
    assert not here.exists(name, "deep")
    assert here.pull(name, ["deep", "empty"], last="a.bin") == folder
    with pytest.raises(ArtifactMissing, match=r"nothing is stored|not exist"):
        here.pull(name, ["other"])
    for file in ("deep/er/b.bin", "empty"):
        here.fetch(name, file, tmp_path / "one file")
        assert (tmp_path / "one file").read_bytes() == FILES[file]
    with pytest.raises(ArtifactMissing, match="other"):
        here.fetch(name, "other", tmp_path / "no file")
    with pytest.raises(ArtifactMissing, match="does not exist"):
        here.push(name, ["other"])
    here.remove(name, ["deep", "never was"])
    assert here.files(name).keys() == FILES.keys() - {"deep/er/b.bin"}
    here.remove(name)
    assert not here.exists(name)
    assert not any(path.is_file() for path in here.folder(name).rglob("*"))


@pytest.mark.parametrize("name", ["../out", "/etc", "a//b", "a/./b", ""])
def test_names_that_leave_their_folder_are_refused(here: Artifacts, name: str) -> None:
    with pytest.raises(ArtifactsRefused, match="valid artifact name"):
        here.folder(name)


def test_another_machine_gets_the_very_files(remote: RemoteArtifacts, elsewhere: RemoteArtifacts) -> None:
    _fill(remote, "training/m/f", FILES)
    remote.push("training/m/f")
    folder = elsewhere.pull("training/m/f")
    assert {file: (folder / file).read_bytes() for file in FILES} == FILES


def test_large_file_travels_in_parts_and_is_not_sent_twice(
    remote: RemoteArtifacts, elsewhere: RemoteArtifacts, servers: RunningServers, url: str
) -> None:
    content = os.urandom(1 << 20) * (2 * PART // (1 << 20) + 3)
    _fill(remote, "snapshots/s", {"shard": content})
    remote.push("snapshots/s")
    pulled = elsewhere.pull("snapshots/s") / "shard"
    assert hashlib.sha256(pulled.read_bytes()).digest() == hashlib.sha256(content).digest()
    key = f"{url}/snapshots/s/shard"
    before = remote._fs.info(key)["LastModified"]
    remote.push("snapshots/s")
    assert remote._fs.info(key)["LastModified"] == before


def test_changed_content_of_the_same_length_is_sent_and_fetched(
    remote: RemoteArtifacts, elsewhere: RemoteArtifacts
) -> None:
    _fill(remote, "n", {"file": b"one"})
    remote.push("n")
    elsewhere.pull("n")
    stamp = (remote.folder("n") / "file").stat()
    _fill(remote, "n", {"file": b"two"})
    os.utime(remote.folder("n") / "file", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    remote.push("n", ["file"])
    assert (elsewhere.pull("n") / "file").read_bytes() == b"two"


def test_one_file_among_thousands_is_looked_up_without_the_others(
    remote: RemoteArtifacts, elsewhere: RemoteArtifacts, servers: RunningServers
) -> None:
    _fill(remote, "job", {"rows/0.bin": b"rows", "rows/more.bin": b"more rows"})
    place = servers.record.path / "s3" / remote.push("job", ["rows/0.bin"]).removeprefix("s3://")
    for number in range(2500):
        (place / "rows" / f"{number}.bin").write_bytes(b"rows")
    asked: Counter[str] = Counter()
    for artifacts in (remote, elsewhere):
        artifacts._fs.s3.meta.events.register("before-call.s3", lambda model, **_: asked.update([model.name]))
    remote.push("job", ["rows/more.bin"])
    assert elsewhere.exists("job", "rows/more.bin")
    assert (elsewhere.pull("job", ["rows/more.bin"]) / "rows" / "more.bin").read_bytes() == b"more rows"
    assert asked["ListObjectsV2"] <= 4  # a listing of all takes three, each time
    with pytest.raises(ArtifactMissing, match="rows/none"):
        elsewhere.pull("job", ["rows/none.bin"])
    assert len(remote.files("job")) == 2501


def test_marker_arrives_last(
    remote: RemoteArtifacts, elsewhere: RemoteArtifacts, servers: RunningServers
) -> None:
    """Whoever sees the marker sees everything, at any moment of the push."""
    _fill(remote, "n", {f"file-{number}": os.urandom(200_000) for number in range(40)} | {"whole": b""})
    pushing = threading.Thread(target=lambda: remote.push("n", last="whole"))
    pushing.start()
    seen: list[int] = []
    while pushing.is_alive() or not seen:
        files = elsewhere.files("n")
        if "whole" in files:
            seen.append(len(files))
    pushing.join()
    assert set(seen) == {41}


def test_client_of_a_parent_process_works_in_its_children(remote: RemoteArtifacts) -> None:
    _fill(remote, "n", {"file": b"one"})
    remote.push("n")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(remote.exists, ("n", "file")).get(timeout=30)


def test_a_server_that_comes_back_in_time_is_not_noticed(
    remote: RemoteArtifacts, elsewhere: RemoteArtifacts, servers: RunningServers
) -> None:
    _fill(remote, "n", {f"file-{number}": os.urandom(100_000) for number in range(20)})
    remote.push("n", ["file-0"])
    servers.kill("s3")
    pushing = threading.Thread(target=lambda: remote.push("n"))
    pushing.start()
    pushing.join(1.0)
    assert pushing.is_alive()  # it waits
    servers.restart("s3")
    pushing.join(200)
    assert not pushing.is_alive()
    assert len(elsewhere.files("n")) == 20


@pytest.mark.parametrize("after", [0.0, 0.01, 0.02])
def test_killed_in_the_middle_leaves_old_or_new_never_half(
    remote: RemoteArtifacts, elsewhere: RemoteArtifacts, servers: RunningServers, after: float
) -> None:
    old, new = os.urandom(5_000_000), os.urandom(5_000_000)
    _fill(remote, "n", {"file": old})
    remote.push("n")
    _fill(remote, "n", {"file": new})
    pushing = threading.Thread(target=lambda: remote.push("n"))
    pushing.start()
    pushing.join(after)
    servers.kill("s3")
    servers.restart("s3")
    assert (elsewhere.pull("n") / "file").read_bytes() in (old, new)
    pushing.join(200)
    assert (elsewhere.pull("n") / "file").read_bytes() == new


def test_a_server_that_stays_away_is_named_with_what_helps(
    servers: RunningServers, url: str, tmp_path: Path
) -> None:
    impatient = _remote(servers, url, tmp_path / "x", patience=1.0)
    servers.kill("s3")
    with pytest.raises(ArtifactsUnavailable, match="ML_ASSETS_S3_ENDPOINT_URL") as caught:
        impatient.exists("n")
    assert servers.secrets["s3_secret"] not in str(caught.value)


def test_wrong_credentials_are_refused_at_once(
    servers: RunningServers, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ArtifactsRefused, match="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"):
        _remote(servers, url, tmp_path / "x").exists("n")


def test_missing_bucket_is_named(servers: RunningServers, tmp_path: Path) -> None:
    lost = _remote(servers, "s3://no-such-bucket/p", tmp_path / "x")
    _fill(lost, "n", {"file": b"one"})
    with pytest.raises(ArtifactsRefused, match=r"bucket of s3://no-such-bucket/p .*not exist"):
        lost.push("n")


def test_addresses_that_nobody_serves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactsRefused, match="takes s3://bucket/prefix or file:///folder"):
        artifacts_of("ftp://host/folder", tmp_path)

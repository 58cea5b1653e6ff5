"""Bytes on the real lakeFS: large ones, by both ways, written by others, damaged, and never a secret beside them."""

import hashlib
import logging
import traceback
from pathlib import Path

import pytest
import urllib3

from ml_assets_tests.resources.lake.lake_contract import FLIGHTS, WEATHER, contents, publish
from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.servers.running_servers import RunningServers
from resources.lake import BranchProtected, LakeError, ObjectNotFound, RefNotFound
from resources.lake.lakefs import LakeFSStore

MEGABYTE = 1 << 20
WAYS = pytest.mark.parametrize("presign_from", [0, None], ids=["presigned", "through the server"])


def write_by_hand(repository: Repository, branch: str, path: str, content: bytes, **metadata: str) -> None:
    """Write like another program would: without a digest, or with a wrong digest."""
    api = repository.api()
    answer = urllib3.request(
        "POST",
        f"{api.url}/api/v1/repositories/{repository.name}/branches/{branch}/objects?path={path}",
        body=content,
        headers=api.headers()
        | {"Content-Type": "application/octet-stream"}
        | {f"X-Lakefs-Meta-{name}": value for name, value in metadata.items()},
        timeout=30,
    )
    assert answer.status == 201, answer.data


@WAYS
def test_two_hundred_megabytes_go_there_and_back(
    repository: Repository, tmp_path: Path, presign_from: int | None
) -> None:
    source = tmp_path / "large"
    block = hashlib.sha256(b"large").digest() * (MEGABYTE // 32)
    with source.open("wb") as file:
        for number in range(200):
            file.write(number.to_bytes(4) + block[4:])
    store = repository.make().store(presign_from=presign_from)
    store.create_branch("audit", "main")
    entry = store.put("audit", FLIGHTS, source)
    assert entry.size == 200 * MEGABYTE
    head = store.commit("audit", "write", {})
    elsewhere = repository.elsewhere("elsewhere").store(presign_from=presign_from)
    fetched = elsewhere.fetch(head, [FLIGHTS])[FLIGHTS]
    with fetched.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    for folder in (repository.cache, repository.elsewhere("elsewhere").cache):
        for copy in folder.glob("objects/*/*"):
            copy.unlink()


def test_both_ways_give_the_same_content_the_same_identity(repository: Repository) -> None:
    by_address = repository.make().store(presign_from=0)
    through_server = repository.store(presign_from=None)
    written = {"a": b"1" * 100, "b": b"", "c": b"2" * 6 * MEGABYTE}
    head = publish(by_address, "one", written)
    for path, content in written.items():
        through_server.put("one", path, content)
    assert through_server.commit("one", "the same", {}) == head
    publish(through_server, "two", written)
    merged = by_address.merge("one", "main", "one", {})
    assert through_server.merge("two", "main", "two", {}) == merged


@WAYS
def test_an_empty_cache_is_filled_from_the_server(repository: Repository, presign_from: int | None) -> None:
    written = {FLIGHTS: b"1", WEATHER: b"", "a b/ü%20+&=?#.txt": b"3"}
    head = publish(repository.make().store(), "audit", written)
    assert contents(repository.elsewhere("elsewhere").store(presign_from=presign_from), head) == written


def test_content_shared_by_many_paths_is_fetched_once(repository: Repository) -> None:
    written = {f"x/{number}": b"same" for number in range(50)}
    head = publish(repository.make().store(), "audit", written)
    elsewhere = repository.elsewhere("elsewhere")
    assert contents(elsewhere.store(), head) == written
    assert len(list(elsewhere.cache.glob("objects/*/*"))) == 1


def test_what_others_wrote_without_a_digest_is_hashed_once(repository: Repository) -> None:
    store = repository.make().store()
    publish(store, "audit", {FLIGHTS: b"ours"})
    write_by_hand(repository, "audit", WEATHER, b"theirs")
    head = store.commit("audit", "theirs", {})
    for ref in ("audit", head):
        assert store.stat(ref, WEATHER).sha256 == hashlib.sha256(b"theirs").hexdigest()
        assert [entry.sha256 for entry in store.list(ref)] == [
            hashlib.sha256(content).hexdigest() for content in (b"ours", b"theirs")
        ]
    # Its content may be gone from the cache: the digest is known all the same, and nothing is fetched for it.
    for copy in repository.cache.glob("objects/*/*"):
        copy.unlink()
    again = repository.store(timeout=5, patience=0)
    digest = again.stat("audit", WEATHER).sha256
    assert not list(repository.cache.glob("objects/*/*"))
    assert digest == hashlib.sha256(b"theirs").hexdigest()
    assert contents(again, head) == {FLIGHTS: b"ours", WEATHER: b"theirs"}


def test_content_that_is_not_what_its_digest_says_is_refused(repository: Repository) -> None:
    store = repository.make().store()
    store.create_branch("audit", "main")
    write_by_hand(repository, "audit", FLIGHTS, b"tampered", sha256=hashlib.sha256(b"honest").hexdigest())
    with pytest.raises(LakeError, match=r"SHA-256.*Write it again"):
        store.fetch("audit", [FLIGHTS])
    store.put("audit", FLIGHTS, b"honest")
    assert contents(store, "audit") == {FLIGHTS: b"honest"}


def test_a_damaged_copy_in_the_cache_is_fetched_again(repository: Repository) -> None:
    store = repository.make().store()
    head = publish(store, "audit", {FLIGHTS: b"whole"})
    copy = store.fetch(head, [FLIGHTS])[FLIGHTS]
    copy.chmod(0o644)
    copy.write_bytes(b"who")
    assert contents(store, head) == {FLIGHTS: b"whole"}


@WAYS
def test_a_large_write_is_refused_like_a_small_one(repository: Repository, presign_from: int | None) -> None:
    store = repository.make().store(presign_from=presign_from)
    publish(store, "audit", {FLIGHTS: b"1"})
    with pytest.raises(BranchProtected):
        store.put("main", FLIGHTS, b"2" * 9 * MEGABYTE)
    with pytest.raises(RefNotFound):
        store.put("nowhere", FLIGHTS, b"2")
    with pytest.raises(ObjectNotFound):
        store.fetch("audit", [WEATHER])


def test_no_credential_is_ever_written_down(
    repository: Repository, servers: RunningServers, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    store = repository.make_ready().store(presign_from=0)
    wrong = LakeFSStore(repository.api(secret="5ecret" * 6), repository.cache)
    publish(store, "audit", {FLIGHTS: b"1", "large": b"2" * 9 * MEGABYTE})
    contents(repository.elsewhere("elsewhere").store(presign_from=0), "audit")
    for fail in (
        lambda: store.merge("audit", "main", "publish", {}),
        lambda: store.put("main", FLIGHTS, b"1"),
        lambda: wrong.put("audit", FLIGHTS, b"1"),
        lambda: wrong.list("main"),
    ):
        with pytest.raises(LakeError) as raised:
            fail()
        said += traceback.format_exception(raised.value)
    servers.kill("s3")
    with pytest.raises(LakeError) as raised:
        repository.store(presign_from=0, timeout=2, patience=0).put("audit", FLIGHTS, b"3")
    said += traceback.format_exception(raised.value)
    with pytest.raises(LakeError) as raised:
        repository.elsewhere("third").store(presign_from=0, timeout=2, patience=0).fetch("audit", [FLIGHTS])
    said += traceback.format_exception(raised.value)
    servers.restart("s3")
    # A presigned address is a credential for minutes: no error repeats one.
    assert "X-Amz-Signature" not in "\n".join(said)
    said += [repr(store), repr(repository.api()), caplog.text]
    said += [commit.message + repr(commit) for commit in store.log("audit")]
    everything = "\n".join(said)
    for name, secret in servers.secrets.items():
        assert secret not in everything, name
    assert "5ecret" not in everything
    for file in tmp_path.rglob("*"):
        if file.is_file():
            written = file.read_bytes()
            assert not [name for name, secret in servers.secrets.items() if secret.encode() in written], file

"""Many processes and threads on one embedded lake: nothing is lost, nobody waits for ever."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ml_assets_tests.resources.lake.lake_writer import PARTS, path_of
from resources.lake import LakeBusy, LakeError, MergeConflict
from resources.lake.local import LocalStore


def start_writer(root: Path, table: str, first: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ml_assets_tests.resources.lake.lake_writer",
            str(root),
            table,
            str(first),
            str(count),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_that_publish_at_once_lose_nothing(tmp_path: Path) -> None:
    # Neither finds a repository, so both make it.
    root = tmp_path / "lake"
    writers = [start_writer(root, "flights", first, 40) for first in (0, 40)]
    for writer in writers:
        output, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0
        assert output.count("merged") == 40
    store = LocalStore(root)
    assert [entry.path for entry in store.list("main")] == [
        path_of("flights", number, part) for number in range(80) for part in range(PARTS)
    ]
    partitions = [commit.metadata.get("partition") for commit in store.log("main", limit=1000)]
    assert sorted(partitions[:-1], key=str) == sorted(map(str, range(80)))
    assert list(store.branches()) == ["main"]


def test_threads_share_one_store(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")

    def publish(number: int) -> None:
        store.create_branch(f"audit-{number}", "main")
        store.put(f"audit-{number}", f"x/{number:02}", b"%d" % number)
        store.commit(f"audit-{number}", "write", {})
        store.merge(f"audit-{number}", "main", "publish", {})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(40)))
    assert [entry.path for entry in store.list("main")] == [f"x/{number:02}" for number in range(40)]


def test_threads_that_write_to_the_branch_being_committed_lose_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    store.create_branch("audit", "main")

    def write(number: int) -> None:
        store.put("audit", f"x/{number:03}", b"%d" % number)
        if number % 5 == 0:
            store.commit("audit", "some", {})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(100)))
    store.commit("audit", "the rest", {})
    assert len(store.list(store.resolve("audit"))) == 100


def test_of_two_stores_that_change_one_path_the_second_conflicts(tmp_path: Path) -> None:
    one, two = LocalStore(tmp_path / "lake"), LocalStore(tmp_path / "lake")
    for store, content in ((one, b"1"), (two, b"2")):
        branch = f"audit-{content.decode()}"
        store.create_branch(branch, "main")
        store.put(branch, "x", content)
        store.commit(branch, "write", {})
    one.merge("audit-1", "main", "first", {})
    with pytest.raises(MergeConflict):
        two.merge("audit-2", "main", "second", {})
    assert two.fetch("main", ["x"])["x"].read_bytes() == b"1"


def test_a_forked_process_goes_on_with_the_store_it_inherited(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    store.create_branch("audit", "main")
    store.put("audit", "parent", b"1")

    child = multiprocessing.get_context("fork").Process(target=store.put, args=("audit", "child", b"2"))
    child.start()
    child.join(200)
    assert child.exitcode == 0
    store.commit("audit", "both", {})
    assert [entry.path for entry in store.list("audit")] == ["child", "parent"]


def test_a_writer_that_never_ends_makes_others_busy_but_not_readers(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    store = LocalStore(root, patience=0.2)
    store.create_branch("audit", "main")
    stuck = sqlite3.connect(root / "refs.db", isolation_level=None)
    stuck.execute("BEGIN IMMEDIATE")
    with pytest.raises(LakeBusy, match="Repeat"):
        store.put("audit", "x", b"1")
    assert store.list("audit") == []
    assert list(LocalStore(root).branches()) == ["audit", "main"]
    stuck.execute("ROLLBACK")
    stuck.close()
    store.put("audit", "x", b"1")
    assert len(store.list("audit")) == 1


def test_only_old_leftovers_of_dead_processes_are_purged(tmp_path: Path) -> None:
    LocalStore(tmp_path / "lake")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    hours_ago = time.time() - 7200
    folder = tmp_path / "lake" / "tmp"
    for name, modified in (
        (f"{gone.pid}-old", hours_ago),
        (f"{gone.pid}-new", time.time()),
        (f"{os.getpid()}-old", hours_ago),
    ):
        (folder / name).write_bytes(b"half of")
        os.utime(folder / name, (modified, modified))
    LocalStore(tmp_path / "lake")
    assert {file.name for file in folder.iterdir()} == {f"{gone.pid}-new", f"{os.getpid()}-old"}


def test_content_lost_before_the_commit_is_refused_and_can_be_put_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    store.create_branch("audit", "main")
    store.put("audit", "x", b"whole")
    file = store.fetch("audit", ["x"])["x"]
    # What a power cut may leave of a file whose folder was not synced yet.
    file.unlink()
    with pytest.raises(LakeError, match="Put it again"):
        store.commit("audit", "write", {})
    store.put("audit", "x", b"whole")
    head = store.commit("audit", "write", {})
    assert store.fetch(head, ["x"])["x"].read_bytes() == b"whole"


@pytest.mark.parametrize("left", [b"who", b"whale"])
def test_damaged_content_is_named_when_read_and_healed_by_writing_it_again(
    tmp_path: Path, left: bytes
) -> None:
    """Shorter, or as long as it was, and found by who read it before."""
    store = LocalStore(tmp_path / "lake")
    store.create_branch("audit", "main")
    store.put("audit", "x", b"whole")
    head = store.commit("audit", "write", {})
    file = store.fetch(head, ["x"])["x"]
    file.chmod(0o644)
    file.write_bytes(left)
    for reader in (store, LocalStore(tmp_path / "lake")):
        with pytest.raises(LakeError, match=r"^x .*5 bytes.* missing"):
            reader.fetch(head, ["x"])
    store.put("audit", "x", b"whole")
    assert store.fetch(head, ["x"])["x"].read_bytes() == b"whole"


def test_a_lake_that_was_moved_away_and_made_anew_is_read_anew(tmp_path: Path) -> None:
    """A process that was open before went on with the moved catalog, whose objects are elsewhere."""
    open_before = LocalStore(tmp_path / "lake")
    (tmp_path / "lake").rename(tmp_path / "moved")
    LocalStore(tmp_path / "lake").create_branch("newer", "main")
    assert "newer" in open_before.branches()

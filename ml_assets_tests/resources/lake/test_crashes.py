"""SIGKILL at any moment leaves a lake that holds all that was reported done, whole and once."""

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets_tests.faults.summary import KILLED
from ml_assets_tests.resources.lake.lake_writer import PARTS, branch_of, content_of, path_of, publish
from ml_assets_tests.resources.lake.test_processes import start_writer
from resources.lake.local import LocalStore

KILLS = 3
BYSTANDER = 20
"""Partitions another process publishes meanwhile."""
STEPS_PER_PARTITION = PARTS + 3


def kill_after(writer: subprocess.Popen[str], steps: int, seconds: float) -> list[str]:
    """Let the writer report `steps` steps and go on for `seconds`, kill it, return all it reported."""
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(steps)]
    # Not to be lucky but to hit every moment: a step takes between 0.2 and 5 ms.
    time.sleep(seconds)
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    assert writer.wait() == -signal.SIGKILL
    # The kill may have cut the last line.
    return [line.rstrip("\n") for line in lines if line.endswith("\n")]


def assert_whole(store: LocalStore, prefix: str = "audit") -> None:
    """The branches with this prefix, their commits and the whole history of main read back as written."""
    checked: set[str] = set()
    branches = store.branches(prefix)
    for ref in (*branches, *branches.values(), *(commit.id for commit in store.log("main", limit=10_000))):
        entries = store.list(ref)
        files = store.fetch(ref, [entry.path for entry in entries])
        for entry in entries:
            if entry.path not in checked:
                content = files[entry.path].read_bytes()
                assert hashlib.sha256(content).hexdigest() == entry.sha256
                assert content == content_of(entry.path)
                checked.add(entry.path)


def partitions_on_main(store: LocalStore, table: str) -> list[int]:
    paths = {entry.path for entry in store.list("main", f"datasets/{table}/")}
    numbers = sorted({int(path.split("/")[2]) for path in paths})
    assert paths == {path_of(table, number, part) for number in numbers for part in range(PARTS)}
    return numbers


def test_a_kill_in_the_middle_of_a_copy_leaves_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    store.create_branch("audit", "main")
    source = tmp_path / "source"
    os.mkfifo(source)
    copier = multiprocessing.get_context("spawn").Process(target=store_from, args=(tmp_path / "lake", source))
    copier.start()
    # Two of the copier's reads of 1 MB, then it waits for more.
    with source.open("wb") as feed:
        feed.write(b"x" * (2 << 20))
        feed.flush()
        copier.kill()
        copier.join()
    assert store.list("audit") == []
    assert list((tmp_path / "lake" / "objects").rglob("*")) == []
    store.put("audit", "x", b"x" * (3 << 20))
    head = store.commit("audit", "again", {})
    assert store.fetch(head, ["x"])["x"].stat().st_size == 3 << 20


def store_from(root: Path, source: Path) -> None:
    LocalStore(root).put("audit", "x", source)


@pytest.mark.chaos
def test_a_kill_loses_nothing_that_was_reported_and_doubles_nothing(
    tmp_path: Path, chaos_seed: int, record_property: Callable[[str, object], None]
) -> None:
    record_property(KILLED, KILLS)
    chance = random.Random(chaos_seed)
    root = tmp_path / "lake"
    bystander = start_writer(root, "weather", 0, BYSTANDER)
    next_number = 0
    for _ in range(KILLS):
        writer = start_writer(root, "flights", next_number, 10_000)
        said = kill_after(writer, chance.randrange(3 * STEPS_PER_PARTITION), chance.uniform(0, 0.01))
        store = LocalStore(root)
        assert_whole(store, "audit-flights")

        merged = [int(line.split()[1]) for line in said if line.startswith("merged")]
        on_main = partitions_on_main(store, "flights")
        assert set(merged) <= set(on_main)
        # At most the one it was in the middle of.
        last_reported = merged[-1] + 1 if merged else next_number
        assert on_main in (list(range(last_reported)), list(range(last_reported + 1)))

        current = branch_of("flights", last_reported)
        for line in said:
            if line.startswith(f"put {current} "):
                assert store.stat(current, line.split()[2])
        if f"committed {current}" in said:
            assert len(store.list(store.resolve(current), f"datasets/flights/{last_reported:05}/")) == PARTS

        publish(store, "flights", last_reported, said.append)
        next_number = last_reported + 1

    output, _ = bystander.communicate(timeout=120)
    assert bystander.returncode == 0
    assert output.count("merged") == BYSTANDER
    store = LocalStore(root)
    assert_whole(store)
    assert partitions_on_main(store, "weather") == list(range(BYSTANDER))
    assert partitions_on_main(store, "flights") == list(range(next_number))
    messages = [commit.message for commit in store.log("main", limit=10_000)]
    assert len(messages) == len(set(messages)) == 1 + BYSTANDER + next_number
    # A partition that main had when its writer was killed left its branch behind, nothing else did.
    assert set(store.branches()) <= {"main", *(branch_of("flights", number) for number in range(next_number))}

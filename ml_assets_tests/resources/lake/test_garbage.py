"""Garbage collection of the embedded lake: kept commits read back as before, everything else is gone."""

import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.lake import LakeError
from resources.lake.garbage import Garbage, GarbageRules, LocalSweep
from resources.lake.local import LocalStore

ALWAYS = GarbageRules(since=datetime(2000, 1, 1, tzinfo=UTC))


def nothing_recent() -> GarbageRules:
    """Rules that keep no commit for its age."""
    return GarbageRules(since=datetime.now(UTC) + timedelta(days=1))


def publish(store: LocalStore, name: str, changes: Mapping[str, bytes | None]) -> str:
    """Commit changes on a branch and merge them into main; return main's head."""
    store.create_branch(name, "main")
    for path, content in changes.items():
        if content is None:
            store.remove(name, path)
        else:
            store.put(name, path, content)
    store.commit(name, name, {})
    head = store.merge(name, "main", name, {})
    store.delete_branch(name)
    return head


def contents(store: LocalStore, commit: str) -> dict[str, bytes]:
    """Return path → content at a commit."""
    paths = [one.path for one in store.list(commit)]
    return {path: file.read_bytes() for path, file in store.fetch(commit, paths).items()}


def collect(root: Path, rules: GarbageRules) -> Garbage:
    """Collect in the store at `root`, also files just written."""
    sweep = LocalSweep(root, young=-1.0)
    seen = sweep.look(rules)
    done = sweep.collect(rules)
    assert seen == done
    assert LocalSweep(root, young=-1.0).look(rules).objects == 0
    return done


def test_a_replaced_content_goes_when_no_rule_keeps_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    old = publish(store, "one", {"a": b"old", "b": b"both"})
    new = publish(store, "two", {"a": b"new"})
    assert collect(tmp_path, ALWAYS).objects == 0
    assert collect(tmp_path, GarbageRules(since=nothing_recent().since, commits=[old])).objects == 0
    assert collect(tmp_path, nothing_recent()) == Garbage(objects=1, size=3)
    assert contents(store, new) == {"a": b"new", "b": b"both"}
    assert [one.path for one in store.list(old)] == ["a", "b"]
    with pytest.raises(LakeError, match="ml-assets gc"):
        store.fetch(old, ["a"])


def test_what_main_held_when_the_kept_time_began_is_kept(tmp_path: Path) -> None:
    """A content that was replaced a moment ago is kept, although its commit is old."""
    store = LocalStore(tmp_path)
    publish(store, "one", {"a": b"older"})
    old = publish(store, "two", {"a": b"old"})
    since = datetime.now(UTC)
    publish(store, "three", {"a": b"new"})
    assert collect(tmp_path, GarbageRules(since=since)) == Garbage(objects=1, size=5)
    assert contents(store, old) == {"a": b"old"}


@pytest.mark.parametrize("kept_by", ["branch", "tag", "staged"])
def test_branches_tags_and_uncommitted_changes_keep(tmp_path: Path, kept_by: str) -> None:
    store = LocalStore(tmp_path)
    old = publish(store, "one", {"a": b"old"})
    publish(store, "two", {"a": b"new"})
    if kept_by == "branch":
        store.keep("keep", old)
    elif kept_by == "tag":
        store.tag("v1", old)
    else:
        store.create_branch("work", "main")
        store.put("work", "c", b"old")
    assert collect(tmp_path, nothing_recent()).objects == 0


def test_young_files_stay(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    publish(store, "one", {"a": b"old"})
    publish(store, "two", {"a": b"new"})
    assert LocalSweep(tmp_path).collect(nothing_recent()).objects == 0
    for file in (tmp_path / "objects").glob("*/*"):
        os.utime(file, (0, 0))
    assert LocalSweep(tmp_path).collect(nothing_recent()).objects == 1


def test_a_commit_that_returns_before_the_sweep_is_kept(tmp_path: Path) -> None:
    """A branch is made at an expired commit, and an expired content is written again, between mark and sweep."""
    store = LocalStore(tmp_path)
    old = publish(store, "one", {"a": b"old", "b": b"again"})
    publish(store, "two", {"a": b"new", "b": None})

    class Slow(LocalSweep):
        def _candidates(self, marks):  # pyright: ignore
            found = list(super()._candidates(marks))
            store.keep("late", old)
            return iter(found)

    assert Slow(tmp_path, young=-1.0).collect(nothing_recent()).objects == 0
    assert contents(store, old) == {"a": b"old", "b": b"again"}


def test_a_writer_of_an_expired_content_beside_the_sweep(tmp_path: Path) -> None:
    """Writers put the same contents again and again while the sweep deletes them: each commit reads back."""
    store = LocalStore(tmp_path)
    ended = threading.Event()

    def sweeping() -> None:
        while not ended.is_set():
            LocalSweep(tmp_path, young=-1.0).collect(nothing_recent())

    sweeper = threading.Thread(target=sweeping)
    sweeper.start()
    try:
        for number in range(12):
            other = {f"p{at}": b"%d" % (number % 2 + 10 * at) for at in range(10)}
            head = publish(store, f"b{number}", other)
            assert contents(LocalStore(tmp_path), head) == other
    finally:
        ended.set()
        sweeper.join()


_PATHS = [f"t/{number}" for number in range(6)]
_CHANGES = st.dictionaries(
    st.sampled_from(_PATHS), st.one_of(st.none(), st.binary(min_size=1, max_size=1)), min_size=1, max_size=4
)
_STEP = st.one_of(
    st.tuples(st.just("publish"), _CHANGES),
    st.tuples(st.just("branch"), st.integers(0, 20)),
    st.tuples(st.just("tag"), st.integers(0, 20)),
    st.tuples(st.just("stage"), st.binary(min_size=1, max_size=1)),
)


@settings(max_examples=25)
@given(
    steps=st.lists(_STEP, min_size=1, max_size=12), kept=st.sets(st.integers(0, 20)), days=st.integers(0, 12)
)
def test_every_kept_commit_reads_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]], kept: set[int], days: int
) -> None:
    """Law: what a kept commit held before a collection, it holds after it; every other file is gone."""
    root = tmp_path_factory.mktemp("lake")
    store = LocalStore(root)
    heads, times = [store.resolve("main")], [datetime.now(UTC)]
    names: set[str] = set()
    for number, (kind, value) in enumerate(steps):
        if kind == "publish" and isinstance(value, dict):
            heads.append(publish(store, f"p{number}", value))
            times.append(datetime.now(UTC))
        elif kind == "stage" and isinstance(value, bytes):
            store.create_branch(f"s{number}", "main")
            store.put(f"s{number}", "staged", value)
        elif isinstance(value, int):
            commit = heads[value % len(heads)]
            names.add(
                store.keep(f"b{number}", commit) if kind == "branch" else store.tag(f"t{number}", commit)
            )
    since = times[min(days, len(times) - 1)]
    asked = {heads[at] for at in kept if at < len(heads)}
    index = min(days, len(heads) - 1)
    safe = {*heads[index:], *names, *asked, store.resolve("main")}
    before = {commit: contents(store, commit) for commit in safe}
    staged = {name: contents(store, name) for name in store.branches("s")}
    collect(root, GarbageRules(since=since, commits=asked))
    again = LocalStore(root)
    assert {commit: contents(again, commit) for commit in safe} == before
    assert {name: contents(again, name) for name in staged} == staged

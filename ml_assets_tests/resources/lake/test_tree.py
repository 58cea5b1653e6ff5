"""Trees: what they hold depends on the contents alone, and every change is found again."""

import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.lake import LakeError, ObjectStat
from resources.lake.local import LocalStore
from resources.lake.tree import Tree, Trees

# Few enough that changes meet, many enough that trees have several ranges and lose whole ones.
PATHS = [f"datasets/{table}/date=2013-{day:03}/part-0.parquet" for table in "abc" for day in range(120)]
entries_at = st.integers(0, 2).map(lambda version: (f"{version:064x}", version))
states = st.dictionaries(st.sampled_from(PATHS), entries_at, max_size=300)


class MemoryTrees(Trees):
    """Trees over a dict, counting what is read."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.loaded = 0
        super().__init__(self._read, self.kept.__setitem__)

    def _read(self, id_: str) -> bytes:
        self.loaded += 1
        return self.kept[id_]


def stats(state: dict[str, tuple[str, int]]) -> dict[str, ObjectStat]:
    return {path: ObjectStat(path, *content) for path, content in state.items()}


def changes_to(before: dict[str, ObjectStat], after: dict[str, ObjectStat]) -> dict[str, ObjectStat | None]:
    changes: dict[str, ObjectStat | None] = {
        path: entry for path, entry in after.items() if before.get(path) != entry
    }
    return changes | dict.fromkeys(before.keys() - after.keys())


def tree_of(trees: Trees, state: dict[str, ObjectStat]) -> Tree:
    return trees.apply((), state)


@given(states, states)
def test_a_tree_depends_on_its_contents_not_on_its_history(
    first: dict[str, tuple[str, int]], last: dict[str, tuple[str, int]]
) -> None:
    trees = MemoryTrees()
    before, after = stats(first), stats(last)
    by_steps = trees.apply(tree_of(trees, before), changes_to(before, after))
    assert by_steps == tree_of(trees, after)
    assert {entry.path: entry for entry in trees.entries(by_steps)} == after
    assert [entry.path for entry in trees.entries(by_steps)] == sorted(after)
    assert trees.read(trees.write(by_steps)) == by_steps


@given(states, states)
def test_the_difference_is_what_changed(
    first: dict[str, tuple[str, int]], last: dict[str, tuple[str, int]]
) -> None:
    trees = MemoryTrees()
    before, after = stats(first), stats(last)
    found = trees.difference(tree_of(trees, before), tree_of(trees, after))
    assert found == changes_to(before, after)


@given(states, st.sampled_from(["", "datasets/b/", "datasets/a/date=2013-05", "datasets/zz", *PATHS[::50]]))
def test_a_prefix_lists_what_starts_with_it(state: dict[str, tuple[str, int]], prefix: str) -> None:
    trees = MemoryTrees()
    tree = tree_of(trees, stats(state))
    assert [entry.path for entry in trees.entries(tree, prefix)] == sorted(
        path for path in state if path.startswith(prefix)
    )


@given(states, st.lists(st.sampled_from([*PATHS, "a", "datasets/b/", "z"])))
def test_paths_are_found_where_they_are(state: dict[str, tuple[str, int]], paths: list[str]) -> None:
    trees = MemoryTrees()
    held = stats(state)
    assert trees.find(tree_of(trees, held), paths) == {path: held[path] for path in paths if path in held}


def test_removing_what_is_not_there_changes_nothing() -> None:
    trees = MemoryTrees()
    tree = tree_of(trees, stats(dict.fromkeys(PATHS, ("0" * 64, 0))))
    assert trees.apply(tree, {"a": None, "datasets/b/x": None, "z": None}) == tree


@pytest.mark.parametrize("partitions", [1_000, 20_000])
def test_one_more_partition_costs_the_same_in_a_large_lake(partitions: int) -> None:
    trees = MemoryTrees()
    state = {f"datasets/x/part-{number:06}": ("0" * 64, number) for number in range(partitions)}
    tree = tree_of(trees, stats(state))
    one_more = ObjectStat("datasets/x/part-000500-b", "1" * 64, 1)
    kept, loaded = len(trees.kept), trees.loaded
    after = trees.apply(tree, {one_more.path: one_more})
    assert trees.loaded - loaded <= 1
    assert len(trees.kept) - kept <= 2
    trees.difference(tree, after)
    assert trees.loaded - loaded <= 5


def test_a_small_change_of_a_large_tree_writes_little() -> None:
    """A commit over 100 tables of 1,000 partitions wrote the whole list of ranges, 161 kB. Now it writes 19 kB."""
    trees = MemoryTrees()
    paths = [
        path
        for table in range(30)
        for day in range(1_000)
        for path in (
            f"datasets/t{table:02}/date={day:04}/part-0.parquet",
            f"_manifests/datasets/t{table:02}/{day:04}.json",
        )
    ]
    tree = tree_of(trees, {path: ObjectStat(path, sha256(path.encode()).hexdigest(), 900) for path in paths})
    first, held = tree, trees.write(tree)
    before, changes = len(trees.kept), 10
    for number in range(changes):
        changed = [path for path in paths if f"/t{3 * number:02}/" in path and f"{99 * number:04}" in path]
        assert len(changed) == 2
        tree = trees.apply(
            tree, {path: ObjectStat(path, sha256(b"new").hexdigest(), 901) for path in changed}
        )
        assert trees.read(trees.write(tree)) == tree
    written = list(trees.kept.values())[before:]
    assert sum(map(len, written)) / changes < 30_000
    undone = trees.difference(tree, first)
    assert trees.write(trees.apply(tree, undone)) == held, "equal contents, equal ids"


def test_a_lake_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    LocalStore(tmp_path)
    with closing(sqlite3.connect(tmp_path / "refs.db")) as database:
        database.execute("PRAGMA user_version=1")
    with pytest.raises(LakeError, match=r"format 1,.*format 2"):
        LocalStore(tmp_path)

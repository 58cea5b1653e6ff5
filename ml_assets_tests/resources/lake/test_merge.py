"""The laws of the three-way merge, and of the commit two histories share."""

from hypothesis import given
from hypothesis import strategies as st

from resources.lake import ObjectStat
from resources.lake.refs import CommitNode, combine, merge_base

State = dict[str, ObjectStat]
states = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=6).map(
    lambda contents: {
        path: ObjectStat(path, f"{content:064x}", content) for path, content in contents.items()
    }
)


def changes(base: State, side: State) -> dict[str, ObjectStat | None]:
    return {path: side.get(path) for path in base.keys() | side.keys() if base.get(path) != side.get(path)}


def merged(base: State, ours: State, theirs: State) -> tuple[State, tuple[str, ...]]:
    """Our side after the merge (conflicting paths as they are with us), and the conflicts."""
    combined = combine(changes(base, ours), changes(base, theirs))
    after = ours | {path: entry for path, entry in combined.changes.items() if entry is not None}
    for path, entry in combined.changes.items():
        if entry is None:
            after.pop(path, None)
    return after, combined.conflicts


@given(states, states, states)
def test_a_merge_conflicts_exactly_where_both_sides_differ(base: State, ours: State, theirs: State) -> None:
    """A conflict needs a change on both sides, to different content."""
    _, conflicts = merged(base, ours, theirs)
    assert conflicts == tuple(
        sorted(
            path
            for path in {*base, *ours, *theirs}
            if ours.get(path) != base.get(path)
            and theirs.get(path) != base.get(path)
            and ours.get(path) != theirs.get(path)
        )
    )


@given(states, states, states)
def test_every_other_path_takes_the_side_that_changed(base: State, ours: State, theirs: State) -> None:
    after, conflicts = merged(base, ours, theirs)
    for path in {*base, *ours, *theirs} - set(conflicts):
        changed = ours if ours.get(path) != base.get(path) else theirs
        assert after.get(path) == changed.get(path)


@given(states, states, states)
def test_it_is_symmetric(base: State, ours: State, theirs: State) -> None:
    forth, conflicts = merged(base, ours, theirs)
    back, same_conflicts = merged(base, theirs, ours)
    assert conflicts == same_conflicts
    assert {path: entry for path, entry in forth.items() if path not in conflicts} == {
        path: entry for path, entry in back.items() if path not in conflicts
    }


@given(states, states, states)
def test_merging_the_same_side_again_changes_nothing(base: State, ours: State, theirs: State) -> None:
    after, conflicts = merged(base, ours, theirs)
    if not conflicts:
        assert merged(base, after, theirs) == (after, ())
        assert merged(theirs, after, theirs) == (after, ())


@given(states, states)
def test_an_unchanged_side_takes_the_other(base: State, side: State) -> None:
    assert merged(base, base, side) == (side, ())
    assert merged(base, side, base) == (side, ())
    assert merged(base, side, side) == (side, ())


@st.composite
def histories(draw: st.DrawFn) -> dict[str, CommitNode]:
    """Commits by id, every one with one or two earlier ones as parents, all from one root."""
    graph = {"00": CommitNode((), 0)}
    for number in range(1, draw(st.integers(1, 25))):
        parents = tuple(draw(st.lists(st.sampled_from(sorted(graph)), min_size=1, max_size=2, unique=True)))
        graph[f"{number:02}"] = CommitNode(parents, 1 + max(graph[parent].generation for parent in parents))
    return graph


def ancestors(graph: dict[str, CommitNode], commit: str) -> set[str]:
    return {commit}.union(*(ancestors(graph, parent) for parent in graph[commit].parents))


@given(histories(), st.data())
def test_the_merge_base_is_a_best_common_ancestor(graph: dict[str, CommitNode], data: st.DataObject) -> None:
    left, right = (data.draw(st.sampled_from(sorted(graph))) for _ in range(2))
    base = merge_base(left, right, graph.__getitem__)
    common = ancestors(graph, left) & ancestors(graph, right)
    assert base in common
    assert not any(base in ancestors(graph, other) for other in common - {base})
    assert merge_base(right, left, graph.__getitem__) == base


def test_the_merge_base_of_long_histories_reads_each_commit_once() -> None:
    graph = {"main-0": CommitNode((), 0)}
    for day in range(1, 2_000):
        graph[f"audit-{day}"] = CommitNode((f"main-{day - 1}",), 2 * day - 1)
        graph[f"main-{day}"] = CommitNode((f"main-{day - 1}", f"audit-{day}"), 2 * day)
    graph["late"] = CommitNode(("main-5",), 11)
    read: list[str] = []

    def counted(commit: str) -> CommitNode:
        read.append(commit)
        return graph[commit]

    assert merge_base("main-1999", "late", counted) == "main-5"
    assert len(read) == len(set(read))
    read.clear()
    assert merge_base("main-1999", "main-1998", counted) == "main-1998"
    assert len(read) <= 4

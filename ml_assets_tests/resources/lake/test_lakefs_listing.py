"""The memory of a server's commits is bounded in bytes, not in commits."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from resources.lake.lakefs_listing import CommitEntries, Entry


def entries(start: int, count: int) -> list[Entry]:
    """Entries as long as a server's."""
    return [
        Entry(
            path=f"datasets/flights/date={n:010}/part-0.parquet",
            size=n,
            sha256=f"{n:064x}",
            address=f"s3://lake/local/data/{n:040x}/{n:020x} {n:032x}",
        )
        for n in range(start, start + count)
    ]


def commit(number: int) -> str:
    """A commit id."""
    return f"{number:064x}"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 40)), max_size=20))
def test_entries_that_are_remembered_are_right_and_bounded(pages: list[tuple[int, int, int]]) -> None:
    remembered = CommitEntries(limit=60_000)
    for ref, start, count in pages:
        page = entries(start, count)
        remembered.add(commit(ref), page)
        assert remembered.size <= 60_000
        assert remembered.find(commit(ref), [one.path for one in page]) == {one.path: one for one in page}
    remembered.add("main", entries(0, 1))
    assert remembered.find("main", [entries(0, 1)[0].path]) == {}, "a branch moves"


def test_the_bound_is_on_memory_whatever_the_number_of_commits() -> None:
    tracemalloc.start()
    try:
        remembered = CommitEntries(limit=2 << 20)
        for ref in range(10):
            remembered.add(commit(ref), entries(ref * 2_000, 2_000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (1 << 20) < remembered.size <= held * 1.5
    assert held < 3 << 20


def test_one_commit_larger_than_the_bound_is_forgotten_and_begins_anew() -> None:
    remembered = CommitEntries(limit=100_000)
    for page in range(10):
        remembered.add(commit(1), entries(page * 100, 100))
        assert remembered.size <= 100_000

"""Caches of lakeFS: whole files by digest, never pulled from under a reader; entries of commits, bounded in bytes."""

import io
import os
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.lake.lakefs_content import ContentCache
from resources.lake.lakefs_listing import CommitEntries, Entry

KILOBYTE = 1024


def content(number: int) -> bytes:
    return f"{number:04}".encode() * (KILOBYTE // 4)


def digest(number: int) -> str:
    return sha256(content(number)).hexdigest()


def find(cache: ContentCache, *numbers: int) -> list[int]:
    """Return the numbers of the cached contents, after a check of each digest."""
    found = cache.find((digest(number), KILOBYTE) for number in numbers)
    assert all(sha256(file.read_bytes()).hexdigest() == name for name, file in found.items())
    return [number for number in numbers if digest(number) in found]


def let_age(cache: ContentCache, hours: float, *numbers: int) -> None:
    """Set the last use of these contents to `hours` ago."""
    for file in cache.find((digest(number), KILOBYTE) for number in numbers).values():
        then = time.time() - hours * 3600
        os.utime(file, (then, then))


def test_a_file_bytes_and_a_stream_of_the_same_content_are_one_copy(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path / "cache")
    (tmp_path / "file").write_bytes(content(1))
    for source in (tmp_path / "file", content(1), io.BytesIO(content(1))):
        assert cache.keep(source) == (digest(1), KILOBYTE)
    assert find(cache, 1) == [1]
    assert len(list((tmp_path / "cache" / "objects").glob("*/*"))) == 1


@pytest.mark.parametrize("left", [0, KILOBYTE])
def test_a_damaged_copy_is_not_found_and_is_replaced(tmp_path: Path, left: int) -> None:
    cache = ContentCache(tmp_path)
    cache.keep(content(1))
    file = cache.find([(digest(1), KILOBYTE)])[digest(1)]
    file.chmod(0o644)
    # What a power cut may leave of content that was not yet on the disk.
    file.write_bytes(b"?" * left)
    assert find(cache, 1) == []
    cache.keep(content(1))
    assert find(cache, 1) == [1]


def test_the_copies_nobody_asked_for_longest_go_first(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, limit=10 * KILOBYTE)
    for number in range(10):
        cache.keep(content(number))
    for number in range(10):
        let_age(cache, 100 - number, number)
    assert find(cache, 0) == [0]  # asked for now
    cache.keep(content(10))  # one more than the bound, so a tenth of it is freed too
    cache.trim()
    there = {file.name for file in (tmp_path / "objects").glob("*/*")}
    assert there == {digest(number) for number in (0, 3, 4, 5, 6, 7, 8, 9, 10)}


def test_what_was_asked_for_within_a_day_stays_however_full_it_is(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, limit=KILOBYTE)
    for number in range(50):
        cache.keep(content(number))
    cache.trim()
    assert find(cache, *range(50)) == list(range(50))


def test_it_trims_itself_while_it_is_filled(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, limit=16 * KILOBYTE, kept=0)
    for number in range(200):
        cache.keep(content(number))
    assert sum(file.stat().st_size for file in (tmp_path / "objects").glob("*/*")) <= 18 * KILOBYTE


def test_readers_and_a_trimmer_at_once_find_whole_files_or_none(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, limit=8 * KILOBYTE, kept=0.5)
    other = ContentCache(tmp_path, limit=8 * KILOBYTE, kept=0.5)

    def use(number: int) -> None:
        one = (cache, other)[number % 2]
        one.keep(content(number % 20))
        find(one, number % 20)
        if number % 25 == 0:
            one.trim()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(500)))


def test_the_digest_of_an_address_is_remembered_by_all(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path)
    assert cache.digest_of("s3://bucket/data/x etag") is None
    cache.remember_digest("s3://bucket/data/x etag", digest(1))
    assert ContentCache(tmp_path).digest_of("s3://bucket/data/x etag") == digest(1)
    assert cache.digest_of("s3://bucket/data/x other") is None


@pytest.mark.parametrize("age", [2.0, 0.0])
def test_half_copies_of_the_dead_are_purged_after_an_hour(tmp_path: Path, age: float) -> None:
    ContentCache(tmp_path)
    half = tmp_path / "tmp" / "999999999-half"
    half.write_bytes(b"x")
    os.utime(half, (time.time() - age * 3600,) * 2)
    ContentCache(tmp_path)
    assert half.exists() == (age == 0.0)


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

"""Contract of every `VersionedStore` for objects, commits and merges, written against the protocol alone.

A store's test module subclasses `VersionedStoreContract` and gives the fixture `store`: an empty repository
whose `main` is protected. Nothing here may know which store it is talking to. Names and refs: `ref_contract`.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from resources.lake import (
    BranchDirty,
    MergeConflict,
    NameRefused,
    ObjectNotFound,
    VersionedStore,
)
from resources.threads import side_by_side

FLIGHTS = "datasets/flights/date=2013-01-01/part-0.parquet"
WEATHER = "datasets/weather/date=2013-01-01/part-0.parquet"


def publish(store: VersionedStore, branch: str, contents: Mapping[str, bytes]) -> str:
    """Write and commit `contents` on a branch made from main; return the commit id."""
    store.create_branch(branch, "main")
    side_by_side(lambda item: store.put(branch, *item), contents.items())
    return store.commit(branch, f"write {branch}", {})


def contents(store: VersionedStore, ref: str, prefix: str = "") -> dict[str, bytes]:
    """Path → bytes at a ref."""
    paths = [entry.path for entry in store.list(ref, prefix)]
    return {path: file.read_bytes() for path, file in store.fetch(ref, paths).items()}


class VersionedStoreContract:
    """Inherit, give the fixture `store`."""

    # A new repository

    def test_a_new_repository_has_an_empty_main(self, store: VersionedStore) -> None:
        assert list(store.branches()) == ["main"]
        assert store.list("main") == []
        assert store.tags() == {}
        assert store.branches()["main"] == store.resolve("main")

    # Objects

    def test_what_was_put_is_read_back_with_its_digest_and_size(self, store: VersionedStore) -> None:
        store.create_branch("audit", "main")
        entry = store.put("audit", FLIGHTS, b"day one")
        assert entry.path == FLIGHTS
        assert entry.sha256 == hashlib.sha256(b"day one").hexdigest()
        assert entry.size == 7
        assert store.stat("audit", FLIGHTS) == entry
        assert store.list("audit") == [entry]
        assert store.fetch("audit", [FLIGHTS])[FLIGHTS].read_bytes() == b"day one"

    def test_a_file_and_bytes_of_the_same_content_are_the_same_object(
        self, store: VersionedStore, tmp_path: Path
    ) -> None:
        source = tmp_path / "part-0.parquet"
        source.write_bytes(b"x" * 3_000_000)
        store.create_branch("audit", "main")
        from_file = store.put("audit", FLIGHTS, source)
        from_bytes = store.put("audit", FLIGHTS, b"x" * 3_000_000)
        assert from_file == from_bytes
        assert source.read_bytes() == b"x" * 3_000_000

    def test_an_empty_object_is_an_object(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b""})
        assert contents(store, "audit") == {FLIGHTS: b""}

    def test_fetched_files_refuse_to_be_written(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"1"})
        file = store.fetch("audit", [FLIGHTS])[FLIGHTS]
        assert file.stat().st_mode & 0o222 == 0

    def test_a_fetched_file_keeps_its_content_when_the_branch_moves_on(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"before"})
        file = store.fetch("audit", [FLIGHTS])[FLIGHTS]
        store.put("audit", FLIGHTS, b"after")
        store.commit("audit", "change", {})
        store.merge("audit", "main", "merge", {})
        assert file.read_bytes() == b"before"

    def test_paths_may_hold_any_character_of_a_file_name(self, store: VersionedStore) -> None:
        written = {"a b/ü%20+&=?#.txt": b"1", "a/../b": b"2", "日本/x": b"3"}
        publish(store, "audit", written)
        assert contents(store, "audit") == written

    @pytest.mark.parametrize("path", ["", "/datasets/x", "_lakefs_actions/audit.yaml"])
    def test_a_path_that_is_not_relative_or_the_servers_own_is_refused(
        self, store: VersionedStore, path: str
    ) -> None:
        store.create_branch("audit", "main")
        with pytest.raises(NameRefused):
            store.put("audit", path, b"1")

    def test_a_missing_object_is_named(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"1"})
        with pytest.raises(ObjectNotFound, match="weather"):
            store.stat("audit", WEATHER)
        with pytest.raises(ObjectNotFound, match="weather"):
            store.fetch("audit", [FLIGHTS, WEATHER])

    def test_fetching_nothing_gives_nothing(self, store: VersionedStore) -> None:
        assert store.fetch("main", []) == {}

    def test_list_takes_a_prefix_and_sorts_by_path(self, store: VersionedStore) -> None:
        days = [f"2013-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 25)]
        written = {f"{table}/{day}": day.encode() for day in reversed(days) for table in ("a", "ab", "b")}
        publish(store, "audit", written)
        assert [entry.path for entry in store.list("audit")] == sorted(written)
        assert [entry.path for entry in store.list("audit", "a/")] == [f"a/{day}" for day in days]
        assert [entry.path for entry in store.list("audit", "ab/2013-11-1")] == [
            f"ab/2013-11-{day}" for day in range(10, 20)
        ]
        assert store.list("audit", "c") == []
        assert store.list("audit", "a/2014") == []

    def test_more_objects_than_a_server_lists_at_once(self, store: VersionedStore) -> None:
        written = {f"{table}/{number:04}": b"%d" % number for table in "ab" for number in range(1_100)}
        head = publish(store, "audit", written)
        for ref in ("audit", head):
            assert [entry.path for entry in store.list(ref)] == sorted(written)
            assert len(store.list(ref, "b/")) == 1_100
        # By branch: nothing can be remembered of the listings above.
        some = [path for path in written if path.endswith("7")]
        fetched = {path: file.read_bytes() for path, file in store.fetch("audit", some).items()}
        assert fetched == {path: written[path] for path in some}
        with pytest.raises(ObjectNotFound, match="a/2000"):
            store.fetch("audit", [*some, "a/2000"])

    # What is uncommitted

    def test_a_branch_shows_uncommitted_changes_and_its_commit_does_not(self, store: VersionedStore) -> None:
        head = publish(store, "audit", {FLIGHTS: b"1", WEATHER: b"1"})
        store.put("audit", FLIGHTS, b"2")
        store.remove("audit", WEATHER)
        store.put("audit", "new", b"3")
        assert contents(store, "audit") == {FLIGHTS: b"2", "new": b"3"}
        assert contents(store, "audit", "datasets/") == {FLIGHTS: b"2"}
        assert contents(store, head) == {FLIGHTS: b"1", WEATHER: b"1"}
        assert store.resolve("audit") == head
        with pytest.raises(ObjectNotFound):
            store.stat("audit", WEATHER)

    def test_a_removed_object_is_gone_after_the_commit(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"1", WEATHER: b"1"})
        store.remove("audit", WEATHER)
        store.commit("audit", "remove", {})
        assert contents(store, "audit") == {FLIGHTS: b"1"}

    def test_removing_what_is_not_there_changes_nothing(self, store: VersionedStore) -> None:
        head = publish(store, "audit", {FLIGHTS: b"1"})
        store.remove("audit", WEATHER)
        assert store.commit("audit", "remove", {}) == head

    def test_branches_do_not_see_each_others_changes(self, store: VersionedStore) -> None:
        store.create_branch("one", "main")
        store.create_branch("two", "main")
        store.put("one", FLIGHTS, b"1")
        assert store.list("two") == []
        assert store.list("main") == []

    def test_a_deleted_branch_takes_its_uncommitted_changes_along(self, store: VersionedStore) -> None:
        store.create_branch("audit", "main")
        store.put("audit", FLIGHTS, b"1")
        store.delete_branch("audit")
        store.create_branch("audit", "main")
        assert store.list("audit") == []

    # Commits

    def test_a_commit_says_what_it_was_told(self, store: VersionedStore) -> None:
        root = store.resolve("main")
        store.create_branch("audit", "main")
        store.put("audit", FLIGHTS, b"1")
        metadata = {"run_id": "4f", "::lakefs::Dagster::url[url:ui]": "http://127.0.0.1:3000/runs/4f"}
        before = datetime.now(UTC)
        commit = store.read_commit(store.commit("audit", "Flights of 1 January – ü", metadata))
        assert commit.id == store.resolve("audit")
        assert commit.parents == (root,)
        assert commit.message == "Flights of 1 January – ü"
        assert metadata.items() <= commit.metadata.items()
        assert commit.created_at.utcoffset() == timedelta(0)
        # A server's clock may count whole seconds.
        assert abs(commit.created_at - before) < timedelta(seconds=60)

    def test_a_commit_without_changes_is_the_head(self, store: VersionedStore) -> None:
        head = publish(store, "audit", {FLIGHTS: b"1"})
        assert store.commit("audit", "nothing", {}) == head

    def test_writing_the_same_content_again_is_no_change(self, store: VersionedStore) -> None:
        head = publish(store, "audit", {FLIGHTS: b"1"})
        store.put("audit", FLIGHTS, b"1")
        assert store.commit("audit", "again", {"run_id": "another"}) == head

    def test_reading_by_commit_id_never_changes(self, store: VersionedStore) -> None:
        first = publish(store, "audit", {FLIGHTS: b"1"})
        store.put("audit", FLIGHTS, b"2")
        second = store.commit("audit", "correct", {})
        store.delete_branch("audit")
        assert contents(store, first) == {FLIGHTS: b"1"}
        assert contents(store, second) == {FLIGHTS: b"2"}

    def test_the_log_goes_back_along_first_parents(self, store: VersionedStore) -> None:
        root = store.resolve("main")
        publish(store, "one", {"one": b"1"})
        publish(store, "two", {"two": b"2"})
        first = store.merge("one", "main", "merge one", {})
        second = store.merge("two", "main", "merge two", {})
        assert [commit.id for commit in store.log("main")] == [second, first, root]
        assert [commit.id for commit in store.log("main", limit=2)] == [second, first]
        assert [commit.message for commit in store.log(second, limit=1)] == ["merge two"]

    def test_a_commit_has_a_page_or_none(self, store: VersionedStore) -> None:
        head = store.resolve("main")
        page = store.commit_url(head)
        assert page is None or (page.startswith("http") and head in page)

    # Merges

    def test_a_merge_carries_its_own_metadata_even_where_main_has_not_moved(
        self, store: VersionedStore
    ) -> None:
        root = store.resolve("main")
        theirs = publish(store, "audit", {FLIGHTS: b"1"})
        merged = store.read_commit(store.merge("audit", "main", "publish", {"audit": "passed"}))
        assert merged.id == store.resolve("main")
        assert merged.parents == (root, theirs)
        assert merged.message == "publish"
        assert merged.metadata["audit"] == "passed"
        assert contents(store, "main") == {FLIGHTS: b"1"}

    def test_merges_of_different_paths_both_stand(self, store: VersionedStore) -> None:
        publish(store, "one", {f"a/{day}": b"1" for day in range(200)})
        publish(store, "two", {f"b/{day}": b"2" for day in range(200)})
        store.merge("one", "main", "one", {})
        store.merge("two", "main", "two", {})
        assert len(store.list("main", "a/")) == 200
        assert len(store.list("main", "b/")) == 200

    def test_merging_twice_changes_nothing(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"1"})
        merged = store.merge("audit", "main", "publish", {})
        assert store.merge("audit", "main", "publish", {"run_id": "another"}) == merged
        assert store.resolve("main") == merged

    def test_merging_what_main_has_already_changes_nothing(self, store: VersionedStore) -> None:
        publish(store, "one", {FLIGHTS: b"1"})
        publish(store, "two", {FLIGHTS: b"1"})
        merged = store.merge("one", "main", "one", {})
        assert store.merge("two", "main", "two", {}) == merged

    def test_different_content_of_one_path_conflicts_and_changes_nothing(self, store: VersionedStore) -> None:
        publish(store, "one", {FLIGHTS: b"1", WEATHER: b"1", "both": b"same", "mine": b"1"})
        publish(store, "two", {FLIGHTS: b"2", WEATHER: b"2", "both": b"same", "yours": b"2"})
        merged = store.merge("one", "main", "one", {})
        with pytest.raises(MergeConflict, match="flights") as raised:
            store.merge("two", "main", "two", {})
        assert raised.value.paths == (FLIGHTS, WEATHER)
        assert store.resolve("main") == merged

    def test_a_removal_against_a_change_conflicts(self, store: VersionedStore) -> None:
        publish(store, "first", {FLIGHTS: b"1"})
        store.merge("first", "main", "first", {})
        for branch in ("remove", "change"):
            store.create_branch(branch, "main")
        store.remove("remove", FLIGHTS)
        store.commit("remove", "remove", {})
        store.put("change", FLIGHTS, b"2")
        store.commit("change", "change", {})
        store.merge("remove", "main", "remove", {})
        with pytest.raises(MergeConflict):
            store.merge("change", "main", "change", {})

    def test_a_removal_reaches_main(self, store: VersionedStore) -> None:
        publish(store, "first", {FLIGHTS: b"1", WEATHER: b"1"})
        store.merge("first", "main", "first", {})
        store.create_branch("remove", "main")
        store.remove("remove", WEATHER)
        store.commit("remove", "remove", {})
        publish(store, "other", {"other": b"1"})
        store.merge("other", "main", "other", {})
        store.merge("remove", "main", "remove", {})
        assert contents(store, "main") == {FLIGHTS: b"1", "other": b"1"}

    def test_after_a_merge_the_branch_can_go_on(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"1"})
        store.merge("audit", "main", "first", {})
        store.put("audit", FLIGHTS, b"2")
        store.commit("audit", "correct", {})
        store.merge("audit", "main", "second", {})
        assert contents(store, "main") == {FLIGHTS: b"2"}

    def test_a_branch_takes_main_in_and_comes_back(self, store: VersionedStore) -> None:
        publish(store, "one", {"one": b"1"})
        publish(store, "two", {"two": b"2"})
        store.merge("one", "main", "one", {})
        store.merge("main", "two", "catch up", {})
        assert contents(store, "two") == {"one": b"1", "two": b"2"}
        store.merge("two", "main", "two", {})
        assert contents(store, "main") == {"one": b"1", "two": b"2"}

    def test_a_commit_and_a_tag_can_be_merged(self, store: VersionedStore) -> None:
        first = publish(store, "audit", {FLIGHTS: b"1"})
        store.put("audit", WEATHER, b"1")
        store.commit("audit", "more", {})
        store.tag("everything", "audit")
        store.merge(first, "main", "a part", {})
        assert contents(store, "main") == {FLIGHTS: b"1"}
        store.merge("everything", "main", "the rest", {})
        assert contents(store, "main") == {FLIGHTS: b"1", WEATHER: b"1"}

    def test_uncommitted_changes_of_the_source_are_left_out(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"1"})
        store.put("audit", WEATHER, b"1")
        store.merge("audit", "main", "publish", {})
        assert contents(store, "main") == {FLIGHTS: b"1"}

    def test_a_branch_with_uncommitted_changes_takes_no_merge(self, store: VersionedStore) -> None:
        publish(store, "one", {FLIGHTS: b"1"})
        store.create_branch("two", "main")
        store.put("two", WEATHER, b"1")
        with pytest.raises(BranchDirty, match="two"):
            store.merge("one", "two", "merge", {})

    # Comparing

    def test_compare_names_every_path_whose_content_differs(self, store: VersionedStore) -> None:
        written = {f"datasets/flights/{n:04}": str(n).encode() for n in range(1200)}
        before = publish(store, "first", written)
        store.put("first", "datasets/flights/0007", b"other")
        store.put("first", "datasets/flights/0008", b"8")
        store.put("first", WEATHER, b"new")
        store.remove("first", "datasets/flights/1100")
        after = store.commit("first", "change", {})
        found = {one.path: one for one in store.compare(before, after)}
        assert list(found) == ["datasets/flights/0007", "datasets/flights/1100", WEATHER]
        for path, one in found.items():
            assert one.before == (store.stat(before, path) if path in written else None)
            assert one.after == (store.stat(after, path) if not path.endswith("1100") else None)
        assert store.compare(after, after) == []

    def test_compare_reads_heads_without_uncommitted_changes(self, store: VersionedStore) -> None:
        publish(store, "first", {FLIGHTS: b"1"})
        store.put("first", WEATHER, b"1")
        assert [one.path for one in store.compare("main", "first")] == [FLIGHTS]
        assert [one.after for one in store.compare("first", "main")] == [None]

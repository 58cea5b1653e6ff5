"""Contract of every `VersionedStore` for names, branches, tags and protection, against the protocol alone.

A store's test module subclasses `RefContract` and gives the fixture `store`, as for `contract`.
"""

import pytest

from ml_assets_tests.resources.lake.lake_contract import FLIGHTS, WEATHER, contents, publish
from resources.lake import (
    BranchProtected,
    NameRefused,
    RefExists,
    RefNotFound,
    VersionedStore,
)


class RefContract:
    """Inherit, give the fixture `store`."""

    # Names

    @pytest.mark.parametrize("name", ["ingest/2013-01-01", "v1.0", "-x", "", "a b", "ü!", "a\n"])
    def test_names_lakefs_would_refuse_are_refused(self, store: VersionedStore, name: str) -> None:
        with pytest.raises(NameRefused):
            store.create_branch(name, "main")
        with pytest.raises(NameRefused):
            store.keep(name, "main")
        with pytest.raises(NameRefused):
            store.tag(name, "main")

    def test_an_unknown_ref_is_named(self, store: VersionedStore) -> None:
        unknown = "0" * 64
        for ref in ("nowhere", unknown):
            for ask in (store.resolve, store.list, lambda ref: list(store.log(ref))):
                with pytest.raises(RefNotFound, match=ref):
                    ask(ref)
            with pytest.raises(RefNotFound, match=ref):
                store.stat(ref, FLIGHTS)
            with pytest.raises(RefNotFound, match=ref):
                store.create_branch("audit", ref)
            with pytest.raises(RefNotFound, match=ref):
                store.merge(ref, "main", "merge", {})
            with pytest.raises(RefNotFound, match=ref):
                store.tag("name", ref)
        with pytest.raises(RefNotFound, match=unknown):
            store.read_commit(unknown)
        for write in (
            lambda: store.put("nowhere", FLIGHTS, b"1"),
            lambda: store.remove("nowhere", FLIGHTS),
            lambda: store.commit("nowhere", "commit", {}),
            lambda: store.merge("main", "nowhere", "merge", {}),
            lambda: store.delete_branch("nowhere"),
        ):
            with pytest.raises(RefNotFound, match="nowhere"):
                write()

    def test_making_a_branch_again_is_a_no_op_only_where_it_stands_clean(self, store: VersionedStore) -> None:
        root = store.resolve("main")
        assert store.create_branch("audit", "main") == root
        assert store.create_branch("audit", root) == root
        store.put("audit", FLIGHTS, b"1")
        with pytest.raises(RefExists, match="audit"):
            store.create_branch("audit", "main")
        store.commit("audit", "commit", {})
        with pytest.raises(RefExists, match="audit"):
            store.create_branch("audit", "main")
        assert contents(store, "audit") == {FLIGHTS: b"1"}

    def test_branches_are_listed_by_prefix_in_order(self, store: VersionedStore) -> None:
        root = store.resolve("main")
        for name in ("keep-b", "audit-1", "keep-a"):
            store.create_branch(name, "main")
        assert list(store.branches().items()) == [
            ("audit-1", root), ("keep-a", root), ("keep-b", root), ("main", root),
        ]  # fmt: skip
        assert list(store.branches("keep-")) == ["keep-a", "keep-b"]
        store.delete_branch("keep-a")
        assert list(store.branches("keep-")) == ["keep-b"]

    def test_a_tag_names_one_commit_for_good(self, store: VersionedStore) -> None:
        head = publish(store, "audit", {FLIGHTS: b"1"})
        assert store.tag("train-1", "audit") == head
        assert store.tag("train-1", head) == head
        with pytest.raises(RefExists, match="train-1"):
            store.tag("train-1", "main")
        store.delete_branch("audit")
        assert store.resolve("train-1") == head
        assert store.tags() == {"train-1": head}
        assert contents(store, "train-1") == {FLIGHTS: b"1"}

    def test_a_kept_commit_stays_under_its_name_until_released(self, store: VersionedStore) -> None:
        head = publish(store, "audit", {FLIGHTS: b"1"})
        assert store.keep("keep-run-1", head) == head
        assert store.keep("keep-run-1", "audit") == head
        with pytest.raises(RefExists, match="keep-run-1"):
            store.keep("keep-run-1", "main")
        store.delete_branch("audit")
        assert store.branches("keep-") == {"keep-run-1": head}
        store.release("keep-run-1")
        store.release("keep-run-1")
        assert store.branches("keep-") == {}

    # Protection

    def test_main_takes_merges_only(self, store: VersionedStore) -> None:
        publish(store, "audit", {FLIGHTS: b"1"})
        store.merge("audit", "main", "publish", {})
        for forbidden in (
            lambda: store.put("main", WEATHER, b"1"),
            lambda: store.remove("main", FLIGHTS),
            lambda: store.commit("main", "commit", {}),
            lambda: store.delete_branch("main"),
            lambda: store.release("main"),
        ):
            with pytest.raises(BranchProtected, match="main"):
                forbidden()
        assert contents(store, "main") == {FLIGHTS: b"1"}

"""Retention on a real lakeFS: its rules are set, kept commits get branches, and what it may delete is counted."""

from datetime import UTC, datetime, timedelta

from ml_assets_tests.servers.lake.repositories import Repository
from resources.lake import VersionedStore
from resources.lake.garbage import GarbageRules, LakeFSRetention


def _publish(store: VersionedStore, name: str, path: str, content: bytes) -> str:
    store.create_branch(name, "main")
    store.put(name, path, content)
    store.commit(name, name, {})
    head = store.merge(name, "main", name, {})
    store.delete_branch(name)
    return head


def test_rules_are_set_and_their_effect_is_counted(repository: Repository) -> None:
    store = repository.make().store()
    retention = LakeFSRetention(repository.api(), store)
    assert retention.retention_days() is None
    first = _publish(store, "one", "datasets/a", b"old")
    _publish(store, "two", "datasets/a", b"newer")
    _publish(store, "three", "datasets/a", b"newest")
    old = GarbageRules(since=datetime.now(UTC) - timedelta(days=30))
    assert retention.look(old).objects == 0
    assert retention.collect(old).objects == 0
    assert retention.retention_days() == 30
    later = datetime.now(UTC) + timedelta(days=1)
    found = retention.look(GarbageRules(since=later))
    assert (found.objects, found.size) == (2, 8)
    assert "garbage collection job" in found.note
    kept = GarbageRules(since=later, commits=[first])
    assert (retention.look(kept).objects, retention.look(kept).size) == (1, 5)
    retention.collect(kept)
    assert store.branches("keep-base-") == {f"keep-base-{first[:12]}": first}
    retention.collect(old)
    assert store.branches("keep-base-") == {}
    store.keep("keep-m-v1", first)
    assert retention.look(GarbageRules(since=later)).size == 5
    assert retention.look(GarbageRules(since=later, without=["keep-m-v1"])).size == 8

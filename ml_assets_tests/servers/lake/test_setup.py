"""`ml-assets lake init` makes a repository ready, and its audit hook holds for everybody who asks the server."""

import pytest

from ml_assets_tests.resources.lake.lake_contract import FLIGHTS, contents, publish
from ml_assets_tests.servers.lake.repositories import STORAGE, Repository
from resources.lake import AuditHookMissing, AuditHookRefused, LakeError, LakeRefused, RepositoryMissing
from resources.lake.lakefs_api import Refusal
from resources.lake.lakefs_content import Content, ContentCache
from resources.lake.lakefs_setup import Readiness, audit_hook_is_current, create_repository, protect, set_up

PASSED = {"audit": "passed"}


def test_init_makes_protects_and_installs_the_hook_once(repository: Repository) -> None:
    assert set_up(repository.api(), STORAGE, repository.cache) == Readiness(True, True, True)
    head = repository.store().resolve("main")
    assert set_up(repository.api(), STORAGE, repository.cache) == Readiness(False, False, False)
    store = repository.store()
    assert store.resolve("main") == head
    # What belongs to the server is not a table's, and nothing else was left.
    assert store.list("main") == []
    assert list(store.branches()) == ["main"]
    assert audit_hook_is_current(repository.api(), repository.cache)


def test_a_write_to_main_is_refused_as_soon_as_protection_returns(repository: Repository) -> None:
    api = repository.api()
    create_repository(api, STORAGE)
    content = Content(api, ContentCache(repository.cache))
    # After a write the server has remembered that main is not protected: that memory has to end first.
    content.upload("main", "early", b"1")
    api.ask("commits_api", "commit", "main", api.model("CommitCreation", message="early"))
    assert protect(api)
    with pytest.raises(Refusal, match="protected branch"):
        content.upload("main", "late", b"1")
    assert contents(repository.store(), "main") == {"early": b"1"}


def test_a_repository_without_a_place_for_its_blocks_is_refused(repository: Repository) -> None:
    with pytest.raises(LakeError, match="ML_ASSETS_LAKE_STORAGE"):
        create_repository(repository.api(), None)
    with pytest.raises(LakeError, match="ML_ASSETS_LAKE_STORAGE"):
        create_repository(repository.api(), "s3://no-such-bucket/here")


def test_a_merge_by_hand_needs_a_passed_audit(repository: Repository) -> None:
    store = repository.make_ready().store()
    publish(store, "audit", {FLIGHTS: b"1"})
    head = store.resolve("main")
    for metadata in (
        {},
        {"audit": "rejected"},
        {"audit": "accepted"},
        {"audit": "accepted", "accepted_by": "ada", "reason": ""},
    ):
        with pytest.raises(Refusal, match=r"(?s)412.*audit=passed") as raised:
            repository.merge_by_hand("audit", metadata)
        assert raised.value.status == 412
    assert store.resolve("main") == head
    repository.merge_by_hand("audit", PASSED)
    assert contents(store, "main") == {FLIGHTS: b"1"}


def test_the_audit_of_the_source_does_not_stand_for_the_merge(repository: Repository) -> None:
    store = repository.make_ready().store()
    store.create_branch("audit", "main")
    store.put("audit", FLIGHTS, b"1")
    store.commit("audit", "write", PASSED)
    with pytest.raises(AuditHookRefused, match="audit=passed"):
        store.merge("audit", "main", "publish", {})
    store.merge("audit", "main", "publish", PASSED)
    assert contents(store, "main") == {FLIGHTS: b"1"}


def test_a_person_may_accept_with_name_and_reason(repository: Repository) -> None:
    store = repository.make_ready().store()
    publish(store, "audit", {FLIGHTS: b"1"})
    store.merge("audit", "main", "accept", {"audit": "accepted", "accepted_by": "ada", "reason": "a holiday"})
    assert contents(store, "main") == {FLIGHTS: b"1"}


@pytest.mark.parametrize(
    "hook", [None, b"name: audit hook\non:\n  pre-merge:\n    branches: [other]\nhooks: []\n"]
)
def test_our_publisher_does_not_use_the_hole_in_the_servers_hook(
    repository: Repository, hook: bytes | None
) -> None:
    store = repository.make_ready().store()
    head = store.resolve("main")
    store.create_branch("audit", "main")
    store.put("audit", FLIGHTS, b"1")
    if hook is None:
        repository.remove_audit_hook("audit")
    else:
        repository.write_audit_hook("audit", hook)
    with pytest.raises(AuditHookMissing, match="Create a new branch"):
        store.merge("audit", "main", "publish", PASSED)
    assert store.resolve("main") == head
    if hook is None:
        # The hole itself: without the check, the server lets it pass without any audit.
        repository.merge_by_hand("audit", {})
        assert store.resolve("main") != head
        assert not audit_hook_is_current(repository.api(), repository.cache)


def test_a_branch_from_before_the_hook_is_not_merged_past_it(repository: Repository) -> None:
    store = repository.make().store()
    publish(store, "audit", {FLIGHTS: b"1"})
    repository.make_ready()
    with pytest.raises(AuditHookMissing):
        store.merge("audit", "main", "publish", PASSED)
    assert store.list("main") == []


def test_init_renews_an_older_hook(repository: Repository) -> None:
    store = repository.make_ready().store()
    store.create_branch("older", "main")
    repository.write_audit_hook(
        "older", b"name: audit hook\non:\n  pre-merge:\n    branches: [main]\nhooks: []\n"
    )
    repository.merge_by_hand("older", PASSED)
    assert not audit_hook_is_current(repository.api(), repository.cache)
    assert set_up(repository.api(), STORAGE, repository.cache) == Readiness(False, False, True)
    assert audit_hook_is_current(repository.api(), repository.cache)
    publish(store, "audit", {FLIGHTS: b"1"})
    with pytest.raises(Refusal, match="audit=passed"):
        repository.merge_by_hand("audit", {})


def test_a_missing_repository_names_init(repository: Repository) -> None:
    store = repository.store()
    for ask in (
        lambda: store.resolve("main"),
        lambda: store.list("main"),
        lambda: store.branches(),
        lambda: store.create_branch("audit", "main"),
        lambda: store.put("audit", FLIGHTS, b"1"),
        lambda: store.commit("audit", "write", {}),
        lambda: store.merge("audit", "main", "publish", {}),
        lambda: store.fetch("main", [FLIGHTS]),
        lambda: store.keep("keep-1", "main"),
        lambda: store.release("keep-1"),
        lambda: list(store.log("main")),
    ):
        with pytest.raises(RepositoryMissing, match="ml-assets lake init"):
            ask()


def test_wrong_credentials_name_the_settings(repository: Repository) -> None:
    repository.make()
    api = repository.api(secret="wrong" * 8)
    for ask in (
        lambda: api.ask("branches_api", "get_branch", "main"),
        lambda: Content(api, ContentCache(repository.cache)).upload("main", FLIGHTS, b"1"),
        lambda: set_up(api, STORAGE, repository.cache),
    ):
        with pytest.raises(LakeRefused, match="ML_ASSETS_LAKE_SECRET_ACCESS_KEY") as raised:
            ask()
        assert "wrongwrong" not in str(raised.value)

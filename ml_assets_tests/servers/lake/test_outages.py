"""The server ends, hangs or loses its answer in the middle of each operation: nothing is lost or done twice."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ml_assets_tests.resources.lake.lake_contract import FLIGHTS, WEATHER, contents, publish
from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.servers.wire import Wire, wire
from resources.lake import LakeUnavailable, MergeConflict, VersionedStore
from resources.lake.lakefs import LakeFSStore

BIG = 9 << 20
"""Bytes from which content is sent past lakeFS to its storage."""

Operation = Callable[[VersionedStore], object]
OPERATIONS: dict[str, tuple[str, Operation]] = {
    "put": (
        "POST /api/v1/repositories/{0}/branches/work/objects",
        lambda store: store.put("work", "new", b"2"),
    ),
    "put past lakeFS": (
        "PUT /api/v1/repositories/{0}/branches/work/staging/backing",
        lambda store: store.put("work", "new", b"2" * BIG),
    ),
    "remove": (
        "DELETE /api/v1/repositories/{0}/branches/work/objects",
        lambda store: store.remove("work", WEATHER),
    ),
    "commit": (
        "POST /api/v1/repositories/{0}/branches/work/commits",
        lambda store: store.commit("work", "write", {"audit": "passed"}),
    ),
    "merge": (
        "/merge/main",
        lambda store: store.merge("done", "main", "publish", {"audit": "passed"}),
    ),
    "create_branch": (
        "POST /api/v1/repositories/{0}/branches ",
        lambda store: store.create_branch("another", "main"),
    ),
    "delete_branch": (
        "DELETE /api/v1/repositories/{0}/branches/done",
        lambda store: store.delete_branch("done"),
    ),
    "tag": ("POST /api/v1/repositories/{0}/tags", lambda store: store.tag("v1", "done")),
    "keep": ("POST /api/v1/repositories/{0}/branches ", lambda store: store.keep("keep-1", "done")),
    "release": ("DELETE /api/v1/repositories/{0}/branches/done", lambda store: store.release("done")),
    "resolve": ("GET /api/v1/repositories/{0}/branches/main", lambda store: store.resolve("main")),
    "list": ("/objects/ls", lambda store: store.list("done")),
    "fetch": (
        "GET /api/v1/repositories/{0}/refs/done/objects?",
        lambda store: store.fetch("done", [FLIGHTS]),
    ),
    "log": ("/commits?", lambda store: list(store.log("main"))),
    "branches": ("GET /api/v1/repositories/{0}/branches?", lambda store: store.branches()),
}
"""Name → the request in whose middle it is cut, and the operation."""
READING = {"resolve", "list", "fetch", "log", "branches"}


@pytest.fixture
def prepared(repository: Repository) -> Repository:
    """`main` with a audit hook; `done`, committed and not merged; `work`, with a change not committed."""
    store = repository.make_ready().store()
    publish(store, "done", {FLIGHTS: b"1", WEATHER: b"1"})
    store.create_branch("work", "done")
    store.put("work", FLIGHTS, b"2")
    return repository


@pytest.fixture
def cut(prepared: Repository) -> Iterator[Wire]:
    """A wire to lakeFS."""
    with wire(prepared.api().url) as made:
        yield made


def state(store: VersionedStore) -> dict[str, object]:
    """All there is, without what differs between two runs."""
    refs = [*store.branches(), *store.tags()]
    return {
        "contents": {ref: contents(store, ref) for ref in refs},
        "committed": {ref: contents(store, store.resolve(ref)) for ref in refs},
        "messages": {ref: [commit.message for commit in store.log(ref)] for ref in refs},
        "metadata": {ref: next(store.log(ref)).metadata.get("audit") for ref in refs},
    }


def undisturbed(repository: Repository, operation: str) -> dict[str, object]:
    """The state after the same operation on a repository of its own, with nothing in the way."""
    other = replace(repository, name=f"{repository.name}-b", cache=repository.cache.with_name("undisturbed"))
    store = other.make_ready().store()
    publish(store, "done", {FLIGHTS: b"1", WEATHER: b"1"})
    store.create_branch("work", "done")
    store.put("work", FLIGHTS, b"2")
    OPERATIONS[operation][1](store)
    return state(store)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_answer_that_is_lost_changes_nothing(prepared: Repository, cut: Wire, operation: str) -> None:
    request, act = OPERATIONS[operation]
    # Another machine: nothing of what it needs is in its cache.
    store = LakeFSStore(prepared.api(url=cut.url), prepared.cache.with_name("elsewhere"))
    cut.lose = request.format(prepared.name)
    act(store)
    assert len(cut.lost) == 1, "never requested"
    assert state(prepared.store()) == undisturbed(prepared, operation)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in READING])
def test_a_server_killed_during_a_request_finishes_it_after_its_restart(
    prepared: Repository, servers: RunningServers, operation: str
) -> None:
    store = prepared.elsewhere("elsewhere").store()
    servers.freeze("lakefs")
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(OPERATIONS[operation][1], store)
        # Long enough for the request to lie in the frozen server's hands, which is all that it is for.
        assert not threading.Event().wait(0.2)
        assert not acting.done()
        servers.kill("lakefs")
        servers.restart("lakefs")
        acting.result(timeout=60)
    assert state(prepared.store()) == undisturbed(prepared, operation)


def test_a_server_that_hangs_is_given_up_in_time(prepared: Repository, servers: RunningServers) -> None:
    before = state(prepared.store())
    store = prepared.elsewhere("elsewhere").store(timeout=0.5, patience=1)

    def give_up(operation: Operation) -> float:
        began = time.monotonic()
        with pytest.raises(LakeUnavailable, match="did not answer"):
            operation(store)
        return time.monotonic() - began

    servers.freeze("lakefs")
    with ThreadPoolExecutor(len(OPERATIONS)) as pool:
        waited = list(pool.map(give_up, [operation for _, operation in OPERATIONS.values()]))
    assert max(waited) < 30  # seconds that a store is patient by default; this one was told to be for 1
    # Not thawed: it would then do what nobody waits for any more.
    servers.kill("lakefs")
    servers.restart("lakefs")
    assert state(prepared.store()) == before


@pytest.mark.parametrize("server", ["s3", "postgresql"])
@pytest.mark.parametrize("size", [10, BIG])
def test_without_storage_or_database_a_write_waits_and_then_says_so(
    prepared: Repository, servers: RunningServers, server: str, size: int
) -> None:
    servers.kill(server)
    # Without its database lakeFS says that the right credentials are wrong: that must not be final.
    for _ in range(3):
        with pytest.raises(LakeUnavailable, match=r"repeat|check that it runs"):
            prepared.store(timeout=10, patience=1).put("work", "new", b"3" * size)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(prepared.store().put, "work", "new", b"3" * size)
        servers.restart(server)
        putting.result(timeout=60)
    assert contents(prepared.elsewhere("elsewhere").store(), "work", "new") == {"new": b"3" * size}


def test_parallel_writes_to_a_dead_server_end_together(prepared: Repository, servers: RunningServers) -> None:
    store = prepared.store(timeout=1, patience=1)
    servers.kill("lakefs")

    def seconds_to_give_up(objects: int) -> float:
        began = time.monotonic()
        with pytest.raises(LakeUnavailable):
            publish(store, "never", {f"x/{number}": b"1" for number in range(objects)})
        return time.monotonic() - began

    assert seconds_to_give_up(500) < 10 * seconds_to_give_up(1)
    servers.restart("lakefs")
    assert "never" not in prepared.store().branches()


def test_a_branch_deleted_during_its_merge_leaves_main_whole(prepared: Repository, cut: Wire) -> None:
    store = LakeFSStore(prepared.api(url=cut.url), prepared.cache)
    by_hand = prepared.store()
    cut.before = ("/merge/main", lambda: by_hand.delete_branch("done"))
    # The merge is of the commit the branch had: it was complete, so it may land.
    store.merge("done", "main", "publish", {"audit": "passed"})
    assert contents(by_hand, "main") == {FLIGHTS: b"1", WEATHER: b"1"}
    assert "done" not in by_hand.branches()


def test_another_merge_at_the_last_moment_conflicts_by_name(prepared: Repository, cut: Wire) -> None:
    by_hand = prepared.store()
    publish(by_hand, "faster", {FLIGHTS: b"3"})

    def overtake() -> None:
        by_hand.merge("faster", "main", "faster", {"audit": "passed"})

    store = LakeFSStore(prepared.api(url=cut.url), prepared.cache)
    cut.before = ("/merge/main", overtake)
    with pytest.raises(MergeConflict, match="flights") as raised:
        store.merge("done", "main", "publish", {"audit": "passed"})
    assert raised.value.paths == (FLIGHTS,)
    assert contents(by_hand, "main") == {FLIGHTS: b"3"}

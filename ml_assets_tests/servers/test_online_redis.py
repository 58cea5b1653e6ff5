"""Redis keeps the newest row of each entity, also for `ml-assets serve --online`; if it is away, the error says so."""

import uuid
from pathlib import Path

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets_tests.release.conftest import rows, store
from ml_assets_tests.resources.online_stores import (
    HOUR,
    SECOND,
    TABLE,
    TTL,
    NewestInMemory,
    now_us,
    race,
    row,
)
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.serving.conftest import Serve, log_artifacts, serve, versions
from ml_assets_tests.serving.online_rows import filled
from resources.addresses import Address
from resources.online import OnlineStore, OnlineStoreRefused, OnlineStoreUnavailable, open_online_store

ENTITIES = ["a", "b", '["ü",1]']
NOWHERE = Path("/nonexistent/online.db")


def store_on(servers: RunningServers, environment: str = "", patience_seconds: float = 10.0) -> OnlineStore:
    """Return a store whose rows no other test sees."""
    address = Address(servers.env["REDIS_URL"])
    environment = environment or uuid.uuid4().hex
    return open_online_store(address, NOWHERE, environment=environment, patience_seconds=patience_seconds)


def test_redis_answers_as_a_dictionary_does(servers: RunningServers) -> None:
    @settings(max_examples=30, deadline=None)
    @given(
        calls=st.lists(
            st.lists(
                st.tuples(st.sampled_from(ENTITIES), st.sampled_from([-5, 0, 3, 18, 40]), st.integers(0, 2)),
                max_size=4,
            ),
            max_size=6,
        )
    )
    def law(calls: list[list[tuple[str, int, int]]]) -> None:
        environment, begin, model = uuid.uuid4().hex, now_us(), NewestInMemory()
        stores = [store_on(servers, environment) for _ in range(2)]
        for number, call in enumerate(calls):
            rows = [row(entity, begin - age * HOUR, begin + known) for entity, age, known in call]
            fresh = [one for one in rows if one.event_us + TTL > begin]
            stores[number % 2].write(TABLE, [one for one in rows if one not in fresh], TTL)
            assert stores[number % 2].write(TABLE, fresh, TTL) == model.write(fresh)
            expected = [model.read(entity, begin) for entity in ENTITIES]
            assert [store.read(TABLE, ENTITIES) for store in stores] == [expected] * 2
            assert stores[0].read(TABLE, ENTITIES[:1]) == expected[:1]

    law()


def test_processes_that_race_leave_the_newest_row_in_redis(servers: RunningServers) -> None:
    environment = uuid.uuid4().hex
    newest = race(Address(servers.env["REDIS_URL"]), NOWHERE, environment, processes=3, rows=60)
    found = store_on(servers, environment).read(TABLE, list(newest))
    assert {one.entity: one.event_us for one in found if one is not None} == newest


def test_redis_expires_rows_and_keeps_rows_without_a_time_to_live(servers: RunningServers) -> None:
    environment, at = uuid.uuid4().hex, now_us()
    store = store_on(servers, environment)
    store.write(TABLE, [row("a", at, at)], 100 * SECOND)
    client = redis.Redis.from_url(servers.env["REDIS_URL"])
    key = f"ml_assets:{environment}:{TABLE}:a"
    assert 0 < client.ttl(key) <= 100
    store.write(TABLE, [row("a", at + 1, at)], None)
    assert client.ttl(key) == -1


def test_a_restarted_redis_has_the_rows_and_takes_new_ones(servers: RunningServers) -> None:
    """The new process has forgotten the script, and the client's connections are closed."""
    store, at = store_on(servers), now_us()
    store.write(TABLE, [row("a", at, at)], None)
    servers.stop("redis")
    away = store_on(servers, patience_seconds=0.5)
    with pytest.raises(OnlineStoreUnavailable, match="redis-cli ping") as refused:
        away.read(TABLE, ["a"])
    assert servers.record.redis_password not in str(refused.value)
    servers.restart("redis")
    assert store.read(TABLE, ["a"]) == [row("a", at, at)]
    assert store.write(TABLE, [row("a", at + 1, at), row("b", at, at)], None) == 2
    assert store.read(TABLE, ["a"]) == [row("a", at + 1, at)]


def test_a_frozen_redis_is_unavailable_after_the_patience(servers: RunningServers) -> None:
    store = store_on(servers, patience_seconds=0.3)
    store.write(TABLE, [row("a", 1, 1)], None)
    servers.freeze("redis")
    with pytest.raises(OnlineStoreUnavailable, match="does not answer"):
        store.read(TABLE, ["a"])
    servers.thaw("redis")
    assert store.read(TABLE, ["a"]) == [row("a", 1, 1)]


def test_a_wrong_password_and_a_foreign_key_are_refused(servers: RunningServers) -> None:
    port, environment = servers.record.ports["redis"], uuid.uuid4().hex
    wrong = open_online_store(
        Address(f"redis://:not-the-password@127.0.0.1:{port}/0"), NOWHERE, environment=environment
    )
    with pytest.raises(OnlineStoreRefused, match="refuses the call") as refused:
        wrong.read(TABLE, ["a"])
    assert "not-the-password" not in str(refused.value)
    redis.Redis.from_url(servers.env["REDIS_URL"]).set(f"ml_assets:{environment}:{TABLE}:a", "a text")
    with pytest.raises(OnlineStoreRefused, match="WRONGTYPE"):
        store_on(servers, environment).write(TABLE, [row("a", 1, 1)], None)


__all__ = ["log_artifacts", "rows", "serve", "store", "versions"]


def test_redis_answers_requests_that_name_an_entity(servers: RunningServers, serve: Serve) -> None:
    """While Redis is frozen, requests with all columns are answered."""
    serving = serve(online=filled(store_on(servers, patience_seconds=0.3)))
    said = serving.predict([{"tail": "N1"}, {"tail": "N2"}]).json()["predictions"]
    assert all(one["online"]["columns"] for one in said)
    unknown = serving.predict({"tail": "N99"})
    assert (unknown.status_code, unknown.json()["field"]) == (422, "hour")
    servers.freeze("redis")
    try:
        refused = serving.predict({"tail": "N1"})
        assert (refused.status_code, "does not answer" in refused.json()["message"]) == (503, True)
        assert serving.predict(serving.row()).status_code == 200
    finally:
        servers.thaw("redis")
    assert serving.predict({"tail": "N1"}).json()["prediction"] == said[0]["prediction"]

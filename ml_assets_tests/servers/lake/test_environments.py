"""Environments on a real lakeFS with its audit hook, and a ledger in PostgreSQL."""

from pathlib import Path

import pytest

from ml_assets.data.tables.environments import (
    EnvironmentConflict,
    changes_of,
    drop_environment,
    merge_environment,
)
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets_tests.resources.ledger_writer import write_one_of_each
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.tables.environment_place import Place
from ml_assets_tests.tables.orders_table import ORDERS, day, keys, reject
from resources.lake.environments import read_environment
from resources.ledger import Person
from resources.platform import Platform

ADA = Person.unchecked("ada")
FIRST, SECOND, THIRD = keys(3)


@pytest.fixture
def place(servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in servers.storage_env.items():
        monkeypatch.setenv(name, value)
    main = Platform(servers.settings(tmp_path))
    main.make_lake_ready()
    return Place(main)


def test_a_change_lands_on_main_with_its_verdicts(place: Place) -> None:
    write_one_of_each(place.main.ledger)
    inside = place.enter()
    assert inside.ask_guard([FIRST, SECOND]).ok
    place.main.inside("try_it").ledger.models.verify()
    inside.publish({SECOND: day(SECOND, factor=2.0)}, run="run00002")
    reject(inside, THIRD)
    accept_partition(
        inside.store, inside.ledger, ORDERS, THIRD, Person.unchecked("grace"), "the till was broken"
    )
    place.orders.publish({FIRST: day(FIRST, factor=5.0)}, run="run00003")
    one = read_environment(place.main.settings.home, "try_it")
    assert changes_of(place.main, one).changed == {ORDERS: (SECOND, THIRD)}
    merge_environment(place.main, "try_it", ADA)
    validation = place.orders.ask_guard([FIRST, SECOND, THIRD])
    assert validation.ok, validation.explain()
    assert merge_environment(place.main, "try_it", ADA).partitions == {}
    drop_environment(place.main, "try_it")
    assert list(place.main.whole_lake.branches()) == ["main"]


def test_a_partition_that_both_changed_is_a_conflict(place: Place) -> None:
    inside = place.enter()
    inside.publish({SECOND: day(SECOND, factor=2.0)}, run="run00002")
    place.orders.publish({SECOND: day(SECOND, factor=3.0)}, run="run00003")
    with pytest.raises(EnvironmentConflict, match=SECOND):
        merge_environment(place.main, "try_it", ADA)

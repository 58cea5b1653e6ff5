"""A table that goes on with another number of rows: its finding names one command, which accepts the level."""

import re
import shlex

import pytest

from ml_assets.data.tables.environments import create_environment, merge_environment
from ml_assets.data.tables.publish.publish import PublishResult
from ml_assets.data.tables.publish.rejected import accept_level
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, keys, reject
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings

BEFORE, LEVEL, AFTER = keys(28), keys(4, start=28), keys(14, start=32)


@pytest.fixture
def orders(terminal: Terminal) -> OrdersTable:
    """Four weeks of 40 orders a day, in the home of the terminal."""
    return _filled(Platform(Settings.model_validate({"home": terminal.home})))


def _filled(platform: Platform) -> OrdersTable:
    orders = OrdersTable(platform.settings.own_home, platform.lake)
    orders.ledger = platform.ledger
    orders.publish({key: day(key) for key in BEFORE})
    return orders


def _grown(orders: OrdersTable, days: list[str]) -> list[PublishResult]:
    """Publish days with 60 orders, one after the other, as each night does."""
    return [orders.publish({key: day(key, rows=60)}) for key in days]


def _command(result: PublishResult) -> str:
    """Return the command in the only finding of a rejected day."""
    [rejected] = result.rejected.values()
    [finding] = rejected.verdict.findings
    found = re.search(r"ml-assets accept .*$", finding.explanation)
    assert found, finding.explanation
    return found[0]


def test_the_command_of_the_finding_accepts_the_level(terminal: Terminal, orders: OrdersTable) -> None:
    """Before, 40 to 60 rows a day were rejected for good: accepted days did not count until each weekday had four."""
    commands = [_command(one) for one in _grown(orders, LEVEL)]
    assert commands[0] == f"ml-assets accept {ORDERS} {LEVEL[0]} --reason '…'"
    assert commands[-1] == f"ml-assets accept {ORDERS} {LEVEL[0]}..{LEVEL[-1]} --reason '…'"
    said = terminal(*shlex.split(commands[-1])[1:])
    assert said.status == 0, said.err
    assert said.out.startswith(f"{ORDERS} {LEVEL[0]}..{LEVEL[-1]} (4 partitions) is accepted by ")
    assert orders.ask_guard(LEVEL).ok
    assert terminal("acceptances", ORDERS).out.count(f"  (level {LEVEL[0]}..{LEVEL[-1]})") == 4
    assert all(one.merged for one in _grown(orders, AFTER))
    late = keys(1, start=46)[0]
    assert orders.publish({late: day(late)}).merged[late].verdict.status == "warned"
    repeated = terminal(*shlex.split(commands[-1])[1:])
    assert (repeated.status, "nothing to accept" in repeated.err) == (1, True)


def test_a_level_does_not_cover_days_that_other_rules_reject(terminal: Terminal, orders: OrdersTable) -> None:
    _grown(orders, LEVEL)
    reject(orders, LEVEL[2])
    said = terminal("accept", ORDERS, f"{LEVEL[0]}..{LEVEL[-1]}", "--reason", "we opened a shop")
    assert said.status == 1
    assert f"{LEVEL[2]}: other rules than the number of rows reject" in said.err
    assert not orders.ask_guard(LEVEL[:2]).ok


def test_a_level_of_an_environment_comes_along_with_its_merge(
    terminal: Terminal, orders: OrdersTable
) -> None:
    main = Platform(Settings.model_validate({"home": terminal.home}))
    create_environment(main, "grow", "ada")
    inside = OrdersTable(main.inside("grow").settings.own_home, main.inside("grow").lake)
    inside.ledger = main.inside("grow").ledger
    command = _command(_grown(inside, LEVEL)[-1])
    first, last = LEVEL[0], LEVEL[-1]
    assert f"{first}..{last}" in command
    accept_level(
        inside.store, inside.ledger, ORDERS, first, last, Person.unchecked("ada"), "we opened a shop"
    )
    merge_environment(main, "grow", Person.unchecked("bob"))
    assert {one.level for one in orders.ledger.acceptances(ORDERS)} == {f"{first}..{last}"}
    assert all(one.merged for one in _grown(orders, AFTER[:3]))

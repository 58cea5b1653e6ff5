"""`ml-assets env` as a person types it, and commands in an environment."""

import json

import pytest

from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys
from resources.lake.environments import EnvironmentView
from resources.lake.local import LocalStore
from resources.ledger import Ledger

FIRST, SECOND, THIRD = keys(3)


@pytest.fixture
def lake(terminal: Terminal) -> LocalStore:
    """The lake of the terminal, with two days of orders on main."""
    assert terminal("lake", "init").status == 0
    store = LocalStore(terminal.home / "lake" / "local")
    OrdersTable(terminal.home, store).publish(days(2))
    return store


def _change(terminal: Terminal, lake: LocalStore) -> None:
    """Publish another second day and a third in the environment `try_it`."""
    orders = OrdersTable(terminal.home / "environments" / "try_it", EnvironmentView(lake, "try_it"))
    orders.ledger = Ledger(f"sqlite:///{orders.folder / 'ledger.db'}", environment="local/try_it")
    orders.publish({SECOND: day(SECOND, factor=2.0), THIRD: day(THIRD)}, run="run00002")


def test_create_diff_merge_drop(terminal: Terminal, lake: LocalStore) -> None:
    said = terminal("env", "create", "try_it")
    assert said.status == 0, said.err
    assert "export ML_ASSETS_ENV=try_it" in said.out
    _change(terminal, lake)
    assert "try_it  by ada, " in terminal("env", "list").out
    assert "2 changed partitions" in terminal("env", "list").out
    assert json.loads(terminal("env", "list", "--json").out)[0]["changed"] == {ORDERS: [SECOND, THIRD]}
    said = terminal("env", "diff", "try_it")
    assert said.status == 0, said.err
    assert "# Environment try_it against main" in said.out
    assert "1 partition only after: 2013-01-03" in said.out
    assert "| 2013-01-02 |" in said.out
    comment = terminal("env", "diff", "try_it", "--markdown").out
    assert comment.startswith("<!-- ml-assets env diff try_it -->\n# Environment try_it")
    facts = json.loads(terminal("env", "diff", "try_it", "--json", "--no-rows").out)
    assert [(one["key"], one["kind"]) for one in facts["partitions"]] == [(SECOND, "rows"), (THIRD, "came")]
    said = terminal("env", "merge", "try_it")
    assert said.status == 0, said.err
    assert f"{ORDERS}: 2 partitions: {SECOND}, {THIRD}" in said.out
    assert "Merge environment try_it: 2 partitions of 1 table, by ada" in terminal("data", "log").out
    assert "nothing to merge" in terminal("env", "merge", "try_it").out
    assert terminal("lake", "audit").status == 0
    assert terminal("env", "drop", "try_it").status == 0
    assert "no environment" in terminal("env", "list").out
    assert list(lake.branches()) == ["main"]


def test_commands_work_in_the_environment(
    terminal: Terminal, lake: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal("env", "create", "try_it")
    _change(terminal, lake)
    assert "run00002" not in terminal("data", "log").out
    monkeypatch.setenv("ML_ASSETS_ENV", "try_it")
    said = terminal("data", "log")
    assert said.status == 0, said.err
    assert "run00002" in said.out
    assert f"Publish {ORDERS}" in said.out
    assert terminal("lake", "audit").status == 0
    assert not (terminal.home / "environments" / "try_it" / "lake").exists()
    assert "2 changed partitions" in terminal("env", "list").out


def test_a_conflict_is_shown_and_refused(terminal: Terminal, lake: LocalStore) -> None:
    terminal("env", "create", "try_it")
    _change(terminal, lake)
    OrdersTable(terminal.home, lake).publish({SECOND: day(SECOND, factor=3.0)}, run="run00003")
    assert "1 conflict with main" in terminal("env", "list").out
    assert "main changed 1 partition that environment" in terminal("env", "diff", "try_it").out
    said = terminal("env", "merge", "try_it")
    assert said.status == 1
    assert f"{ORDERS} {SECOND}" in said.err
    assert "Nothing was merged" in said.err


def test_wrong_names_are_explained(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'pr_12' is possible" in terminal("env", "create", "PR-12").err
    assert "no environment is named 'try_it'" in terminal("env", "diff", "try_it").err
    monkeypatch.setenv("ML_ASSETS_ENV", "lost")
    said = terminal("data", "log")
    assert said.status == 1
    assert "ml-assets env create lost" in said.err
    assert not (terminal.home / "environments").exists()
    monkeypatch.setenv("ML_ASSETS_ENV", "PR-12")
    assert "ML_ASSETS_ENV" in terminal("data", "log").err

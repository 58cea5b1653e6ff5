"""`ml-assets data` as a person types it: log, diff, checkout, blame, show."""

import json
import re
from pathlib import Path

import pytest

from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.tables.history_contract import FIRST, SECOND, changed_day
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, days, reject
from resources.lake.local import LocalStore


@pytest.fixture
def orders(terminal: Terminal) -> OrdersTable:
    """Two versions of the table of orders, in the lake of the terminal."""
    assert terminal("lake", "init").status == 0
    orders = OrdersTable(terminal.home, LocalStore(terminal.home / "lake" / "local"))
    orders.publish(days(2))
    orders.publish({SECOND: changed_day(SECOND)}, run="run00002")
    return orders


def test_log_and_blame_name_run_and_person(terminal: Terminal, orders: OrdersTable) -> None:
    said = terminal("data", "log")
    assert said.status == 0, said.err
    newest, first, _ = said.out.splitlines()
    assert newest.endswith(f"Publish {ORDERS} {SECOND}, run run00002, by ada")
    assert f"Publish {ORDERS} {FIRST}, {SECOND}, run run00001" in first
    facts = json.loads(terminal("data", "log", "--table", ORDERS, "--limit", "1", "--json").out)
    assert [one["keys"] for one in facts] == [[SECOND]]
    said = terminal("data", "blame", ORDERS, SECOND)
    assert said.status == 0, said.err
    assert "41 rows" in said.out.splitlines()[0]
    assert "code v1; differs from the content before by: rows of the source" in said.out
    assert len(json.loads(terminal("data", "blame", ORDERS, SECOND, "--json").out)) == 2


def test_diff_prints_a_page_json_or_html(terminal: Terminal, orders: OrdersTable, tmp_path: Path) -> None:
    before = json.loads(terminal("data", "log", "--json").out)[1]["commit"]
    said = terminal("data", "diff", before, "main")
    assert said.status == 0, said.err
    assert "1 partition in 1 table differ" in said.out
    assert "1 partition with other rows: 2013-01-02" in said.out
    facts = json.loads(terminal("data", "diff", before, "main", "--json").out)
    assert {"amount", "order"} <= {one["column"] for one in facts["partitions"][0]["statistics"]}
    assert "not read" in terminal("data", "diff", before, "main", "--no-rows").out
    said = terminal("data", "diff", before, "main", "--html", str(tmp_path / "page.html"))
    assert "2013-01-02" in (tmp_path / "page.html").read_text()
    assert "No partition differs." in terminal("data", "diff", "main", "main").out


def test_checkout_writes_a_commit_to_a_new_folder(
    terminal: Terminal, orders: OrdersTable, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    said = terminal("data", "checkout", "main", str(folder), "--partitions", SECOND)
    assert said.status == 0, said.err
    (part,) = folder.rglob("*.parquet")
    assert json.loads((folder / "checkout.json").read_text())["commit"] == orders.store.resolve("main")
    assert part.relative_to(folder) == Path(ORDERS, f"date={SECOND}", "part-0.parquet")
    said = terminal("data", "checkout", "main", str(folder))
    assert said.status == 1
    assert "name a new folder" in said.err
    said = terminal("data", "checkout", "main", str(tmp_path / "other"), "--partitions", "2014-01-01")
    assert f"no partition 2014-01-01 in {ORDERS}" in said.err


def test_show_names_verdict_users_and_columns_and_draws_them(
    terminal: Terminal, orders: OrdersTable, tmp_path: Path
) -> None:
    said = terminal("data", "show", ORDERS)
    assert said.status == 0, said.err
    assert f"# {ORDERS} {SECOND}" in said.out
    assert "**41 rows, passed.**" in said.out
    assert "No table, training or environment uses this partition." in said.out
    assert terminal("env", "create", "mine").status == 0
    said = terminal("data", "show", ORDERS, SECOND)
    assert re.search(r"\| environment +\| mine +\| +\| the same rows", said.out)
    assert re.search(r"\| shop +\| string +\| +100.0% \| north \(27\), south \(14\)", said.out)
    facts = json.loads(terminal("data", "show", ORDERS, FIRST, "--json").out)
    assert facts["environments"] == {"mine": "the same rows"}
    said = terminal("data", "show", ORDERS, "--html", str(tmp_path / "page.html"))
    assert said.status == 0, said.err
    page = (tmp_path / "page.html").read_text()
    # Two numbers and two texts have a distribution, a moment has none.
    for name in ("order", "shop", "amount", "note", "rows", "completeness", "freshness"):
        assert f'<img alt="{name}"' in page
    assert "ordered_at" in page
    assert '<img alt="ordered_at"' not in page


def test_show_explains_a_day_that_was_never_accepted(terminal: Terminal, orders: OrdersTable) -> None:
    reject(orders, "2013-01-03")
    for option in ((), ("--json",)):
        said = terminal("data", "show", ORDERS, "2013-01-03", *option)
        assert said.status == 1
        assert (
            f"main holds no rows of {ORDERS} 2013-01-03, because it is rejected: out_of_range in amount"
            in said.err
        )
        assert f"ml-assets accept {ORDERS} 2013-01-03 --reason" in said.err


def test_show_names_what_there_is_instead(terminal: Terminal, orders: OrdersTable) -> None:
    said = terminal("data", "show", "datasets/other")
    assert said.status == 1
    assert f"main has no partition of datasets/other; it has partitions of {ORDERS}" in said.err
    said = terminal("data", "show", ORDERS, "2014-01-01")
    assert said.status == 1
    assert "has no partition 2014-01-01" in said.err


@pytest.mark.parametrize("typed", [("log",), ("diff", "main", "main"), ("checkout", "main", "somewhere")])
def test_a_mistyped_table_does_not_look_unchanged(
    terminal: Terminal, orders: OrdersTable, typed: tuple[str, ...]
) -> None:
    said = terminal("data", *typed, "--table", "datasets/order")
    assert said.status == 1
    assert "no table is named 'datasets/order' at " in said.err
    assert f"did you mean '{ORDERS}'?" in said.err
    assert not Path("somewhere").exists()


def test_a_place_that_cannot_be_written_is_named(
    terminal: Terminal, orders: OrdersTable, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for typed in (("show", ORDERS, "--html"), ("checkout", "main")):
        said = terminal("data", *typed, str(tmp_path / "file" / "page"))
        assert said.status == 1
        assert f"cannot write {tmp_path / 'file' / 'page'}" in said.err


def test_the_begin_of_an_id_names_a_commit(terminal: Terminal, orders: OrdersTable) -> None:
    """`data log` prints twelve digits."""
    printed = terminal("data", "log").out.splitlines()[1].partition(" ")[0]
    assert len(printed) == 12
    said = terminal("data", "diff", printed, "main")
    assert said.status == 0, said.err
    assert "1 partition with other rows: 2013-01-02" in said.out
    assert terminal("data", "log", printed[:7]).out.startswith(printed)
    other = "0" * 12 if printed[0] != "0" else "1" * 12
    assert f"No branch, tag or commit '{other}'" in terminal("data", "log", other).err


def test_a_ref_that_is_nothing_is_explained(terminal: Terminal, orders: OrdersTable) -> None:
    assert "No branch, tag or commit 'nowhere'" in terminal("data", "log", "nowhere").err
    assert "the version is a number" in terminal("data", "log", "flights/newest").err
    said = terminal("data", "checkout", "flight_delay/1", "somewhere")
    assert said.status == 1
    assert "flight_delay has no registered version yet" in said.err
    assert "has no partition 2014-01-01" in terminal("data", "blame", ORDERS, "2014-01-01").err


def test_corrections_are_listed_with_their_moment_and_rows(terminal: Terminal, orders: OrdersTable) -> None:
    """The tables declare nothing here, so rows have no key: a changed row went and came."""
    said = terminal("data", "corrections", ORDERS)
    assert said.status == 1
    assert (
        f"{ORDERS} {SECOND} keeps no rows from before a correction: declare `known_at: ingestion`" in said.err
    )
    orders.publish(days(2), run="run00003", is_known_at_ingestion=True)
    said = terminal("data", "corrections", ORDERS)
    assert said.status == 0, said.err
    assert re.fullmatch(
        rf"{SECOND}  [\d-]+ [\d:]+ UTC  41 → 40 rows: 1 came, 2 went, 0 changed\n", said.out
    ), said.out
    (facts,) = json.loads(terminal("data", "corrections", ORDERS, SECOND, "--json").out)
    assert (facts["key"], facts["change"]["after"] - facts["change"]["before"]) == (SECOND, -1)
    assert terminal("data", "corrections", ORDERS, FIRST).out == f"{ORDERS} {FIRST} was not corrected.\n"
    said = terminal("data", "corrections", ORDERS, "2013-01-09")
    assert said.status == 1
    assert "2013-01-09" in said.err
    assert (
        "no table is named 'datasets/order' at main" in terminal("data", "corrections", "datasets/order").err
    )

"""`ml-assets lake` on the embedded lake: nothing to make ready, and a history that can be read."""

import sqlite3
from contextlib import closing

from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import ORDERS, day, keys
from resources.lake.local import LocalStore
from resources.ledger import Ledger


def test_the_embedded_lake_makes_itself(terminal: Terminal) -> None:
    said = terminal("lake", "init")
    assert said.status == 0, said.err
    assert "its first use creates it" in said.out


def test_lake_audit_names_commits_without_an_audit(terminal: Terminal) -> None:
    assert terminal("lake", "audit").status == 0
    store = LocalStore(terminal.home / "lake" / "local")
    for name, metadata in (
        ("passed", {"audit": "passed"}),
        ("accepted", {"audit": "accepted", "accepted_by": "ada", "reason": "a holiday"}),
        ("nobody", {"audit": "accepted"}),
        ("unsaid", {}),
    ):
        store.create_branch(name, "main")
        store.put(name, name, b"1")
        store.commit(name, "write", {})
        store.merge(name, "main", f"merged by {name}", metadata)
    said = terminal("lake", "audit")
    assert said.status == 1
    assert "merged by nobody" in said.out
    assert "merged by unsaid" in said.out
    assert "merged by passed" not in said.out
    assert "merged by accepted" not in said.out
    assert "passed audit: 2." in said.out


def test_lake_audit_names_rejections_that_the_ledger_lost(terminal: Terminal) -> None:
    """Somebody put an older copy of the ledger back: nothing refuses the rows that main holds."""
    home = terminal.home
    store, ledger = LocalStore(home / "lake" / "local"), Ledger(f"sqlite:///{home}/ledger.db")
    (key,) = keys(1)

    def publish_orders(amount: float) -> None:
        incoming = [Incoming(key=key, data=day(key, factor=amount))]
        publish(
            store,
            ledger,
            orders_table.spec(),
            incoming,
            PublishingRun(run_id="a-run", url=""),
            NOTHING_DECLARED,
        )

    publish_orders(1.0)
    with closing(sqlite3.connect(home / "ledger.db")) as now, closing(sqlite3.connect(home / "copy")) as copy:
        now.backup(copy)
        publish_orders(-1.0)
        assert terminal("lake", "audit").status == 0
        copy.backup(now)
    said = terminal("lake", "audit")
    assert said.status == 1
    assert f"{ORDERS} {key} was rejected (branch audit-datasets-orders-{key}-arun-" in said.out
    publish_orders(1.0)
    publish_orders(-1.0)
    assert terminal("lake", "audit").status == 0

"""`ml-assets events prune` as a person types it. What stays: `extras/test_event_pruning.py`."""

import json
import sqlite3
from contextlib import closing

from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.extras.pruned_assets import KEYS
from ml_assets_tests.extras.pruned_histories import opened, run
from resources.settings import Settings


def test_a_dry_run_then_the_deletion(terminal: Terminal) -> None:
    with opened(Settings(home=terminal.home)) as instance:
        for _ in range(2):
            run(instance, "raw", KEYS[0])
    log = terminal.home / "dagster" / "history" / "event_log.db"
    assert json.loads(terminal("events", "prune", "--json").out)["rows"]["events"] == 0
    with closing(sqlite3.connect(log)) as database, database:
        database.execute("UPDATE event_logs SET timestamp = datetime(timestamp, '-91 days')")
    said = terminal("events", "prune")
    assert said.status == 0, said.err
    assert said.out.splitlines()[0].split()[0] == "events"
    assert said.out.endswith("Nothing was deleted. To delete them: ml-assets events prune --delete\n")
    facts = json.loads(terminal("events", "prune", "--delete", "--json").out)
    assert facts["rows"]["events"] == int(said.out.splitlines()[0].split()[1].replace(",", "")) > 10
    assert facts["bytes_after"] == log.stat().st_size <= facts["bytes"]

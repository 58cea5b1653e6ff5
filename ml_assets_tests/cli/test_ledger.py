"""`ml-assets ledger`, its hash chain, and every other command over the ledger of another version."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.resources.ledger_writer import write_one_of_each
from ml_assets_tests.resources.next_ledger_version import OTHER, next_version
from resources.ledger import Ledger


@pytest.fixture
def ledger(terminal: Terminal) -> Path:
    """The ledger of the home, which a command has made."""
    file = terminal.home / "ledger.db"
    Ledger(f"sqlite:///{file}").newest_verdicts("datasets/none")
    return file


def test_the_revision_is_shown_before_and_after_the_first_use(terminal: Terminal) -> None:
    needed = "this version of ml-assets needs r0003"
    assert terminal("ledger", "current").out == f"the tables have revision none, {needed}\n"
    assert terminal("history", "m").status == 1  # it reads, and makes tables that no other command finds
    assert terminal("ledger", "current").out == f"the tables have revision none, {needed}\n"
    Ledger(f"sqlite:///{terminal.home}/ledger.db").newest_verdicts("datasets/none")
    assert terminal("ledger", "current").out == f"the tables have revision r0003, {needed}\n"


@pytest.mark.usefixtures("ledger")
def test_a_newer_ledger_is_refused_with_the_remedy(terminal: Terminal, tmp_path: Path) -> None:
    with next_version(tmp_path, revision=OTHER):
        assert terminal("history", "m").status == 1  # there is none, but the tables are upgraded
        assert terminal("ledger", "current").out.startswith(f"the tables have revision {OTHER}, this version")
    refused = terminal("history", "m")
    assert refused.status == 1
    assert f"has tables of revision {OTHER}, from a newer version of ml-assets" in refused.err
    assert "Use the newer version" in refused.err


def test_a_ledger_from_before_the_first_release_is_refused_in_a_line(
    terminal: Terminal, ledger: Path
) -> None:
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("UPDATE ledger_version SET version_num = '0006'")
        database.commit()
    said = (
        f"ledger sqlite:///{ledger} has tables of revision 0006, from before the first release of ml-assets. This "
        "version cannot read them. Start anew: with an empty home (ML_ASSETS_HOME); "
    )
    refused = terminal("history", "m")
    assert refused.status == 1
    assert refused.err.startswith(f"Error: {said}")
    assert refused.err.count("\n") == 1


def test_verify_prints_a_head_and_names_the_first_changed_row(terminal: Terminal, ledger: Path) -> None:
    assert terminal("ledger", "verify").out == "the ledger has no decision yet\n"
    write_one_of_each(Ledger(f"sqlite:///{ledger}"))
    said = terminal("ledger", "verify").out
    assert said.startswith("8 decisions, each chained to the one before it")
    again = said.rpartition("ml-assets ")[2].split()
    assert terminal(*again).status == 0
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("DROP TRIGGER ledger_decisions_no_update")
        database.execute("UPDATE ledger_decisions SET reason = 'mine' WHERE kind = 'promotion'")
        database.commit()
    refused = terminal("ledger", "verify")
    assert refused.status == 1
    assert refused.err.startswith("Error: row 3 (promotion of m, ")
    assert "FAIL  ledger           row 3 (promotion of m, " in terminal("doctor").out
    assert "'5:x' is not a head of the ledger" in terminal("ledger", "verify", "--head", "5:x").err

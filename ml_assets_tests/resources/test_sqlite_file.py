"""Databases that other packages make: a process that dies at any statement of that leaves nothing that stays broken."""

import multiprocessing
import multiprocessing.connection
import os
import signal
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from ml_assets.dagster_host.storage import OneFileStorage
from ml_assets_tests.faults.child_processes import forkserver

PATIENCE = 180.0


@pytest.fixture(scope="module")
def children() -> ForkServerContext:
    """Processes that have imported Dagster and opened nothing."""
    return forkserver(__name__)


@dataclass(frozen=True)
class Unbroken:
    """A home that was opened to the end."""

    statements: int
    tables: dict[str, tuple[list[str], int]]


@pytest.fixture(scope="module")
def unbroken(children: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """Return a home that was opened to the end, to compare others with."""
    home = tmp_path_factory.mktemp("unbroken")
    return Unbroken(_statements(children, home), _tables(home))


@pytest.mark.parametrize("twelfth", range(12))
def test_a_kill_while_dagsters_tables_are_made_does_not_spoil_the_home(
    children: ForkServerContext, unbroken: Unbroken, tmp_path: Path, twelfth: int
) -> None:
    """Each kill is a test: twelve starts within the limit of one were too many for a slow machine."""
    assert unbroken.statements > 100
    killed = children.Process(target=_open, args=(tmp_path, 1 + twelfth * (unbroken.statements // 12)))
    killed.start()
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    assert _tables(tmp_path) == unbroken.tables
    assert not list(tmp_path.rglob(".*.making"))


def test_a_kill_after_the_rename_leaves_nothing_to_the_next_start(tmp_path: Path) -> None:
    """The folder in which the file was made is still there; the file is whole."""
    OneFileStorage(str(tmp_path))
    for file in tmp_path.rglob("*.db"):
        file.with_name(f".{file.name}.making").mkdir()
    OneFileStorage(str(tmp_path))
    assert not list(tmp_path.rglob(".*.making"))


def test_processes_that_open_an_empty_home_together_all_find_its_tables(
    children: ForkServerContext, tmp_path: Path
) -> None:
    processes = [children.Process(target=_open, args=(tmp_path / "home", 0)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * 4


def _tables(home: Path) -> dict[str, tuple[list[str], int]]:
    """Open a home and return database → its tables, and how many migrations it counts as done."""
    OneFileStorage(str(home))
    found: dict[str, tuple[list[str], int]] = {}
    for file in home.rglob("*.db"):
        engine = sa.create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)
        names = sa.inspect(engine).get_table_names()
        with engine.connect() as connection:
            count = connection.execute(sa.text("SELECT count(*) FROM secondary_indexes")).scalar_one()
        found[file.name] = sorted(names), count
    return found


def _statements(children: ForkServerContext, home: Path) -> int:
    """Open a home and return how many statements that took."""
    said, says = children.Pipe(duplex=False)
    process = children.Process(target=_open, args=(home, 0, says))
    process.start()
    says.close()  # so that a child that fails ends the waiting
    counted = said.recv()
    process.join(PATIENCE)
    return counted


def _open(home: Path, last: int, says: "multiprocessing.connection.Connection | None" = None) -> None:
    """Open a home, and die before its `last` statement (0: never)."""
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1
        if counted == last:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(sa.Engine, "before_cursor_execute", count)
    OneFileStorage(str(home))
    if says is not None:
        says.send(counted)

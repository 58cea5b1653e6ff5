"""Processes of two environments that open the same new ledgers at once. Each ledger must belong to one environment."""

import multiprocessing
import multiprocessing.connection
import threading
from collections.abc import Sequence
from pathlib import Path

from ml_assets_tests.faults.child_processes import forkserver
from resources.addresses import Address
from resources.ledger import LedgerOfAnotherLake
from resources.platform import Platform
from resources.settings import Settings

ENVIRONMENTS = ("production", "production", "staging", "staging")
"""Environment of each process."""
PATIENCE = 180.0

Place = tuple[Path, str | None]
"""Home, and address of the ledger; None: in the home."""


def assert_each_ledger_belongs_to_one_environment(places: Sequence[Place]) -> None:
    """Open each of these new ledgers by four processes at once: one environment holds it, the other is refused."""
    context = forkserver(__name__, "alembic.command")
    together = context.Barrier(len(ENVIRONMENTS))
    children = []
    for environment in ENVIRONMENTS:
        said, says = context.Pipe(duplex=False)
        child = context.Process(target=_open_all, args=(environment, places, together, says))
        child.start()
        says.close()  # so that a child that fails ends the waiting
        children.append((child, said))
    answers: list[list[str]] = [said.recv() for _, said in children]
    for child, _ in children:
        child.join(PATIENCE)
    assert [child.exitcode for child, _ in children] == [0] * len(ENVIRONMENTS)
    for held in zip(*answers, strict=True):
        assert list(held) in (["yes", "yes", "no", "no"], ["no", "no", "yes", "yes"])


def _open_all(
    environment: str,
    places: Sequence[Place],
    together: threading.Barrier,
    says: "multiprocessing.connection.Connection",
) -> None:
    answers: list[str] = []
    for home, url in places:
        ledger = Platform(
            Settings(home=home, environment=environment, ledger_url=None if url is None else Address(url))
        ).ledger
        together.wait(PATIENCE)
        try:
            ledger.newest_verdicts("datasets/none")
            answers.append("yes")
        except LedgerOfAnotherLake:
            answers.append("no")
    says.send(answers)

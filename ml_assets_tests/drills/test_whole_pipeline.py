"""SIGKILL at any moment from an empty home to the registered version, of the command or of a worker: the same
commands again end where unbroken ones do, nothing lost, nothing doubled, nobody left behind.

Kills inside one part (lake, tables, tracker, training) have tests beside that part; here whole commands die.
"""

import json
import multiprocessing.process
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ml_assets.tables import layout
from ml_assets.tables.reader import TableReader
from ml_assets_tests.chaos import user
from ml_assets_tests.chaos.installation import Facts, assert_sound, facts_of
from ml_assets_tests.chaos.moments import PHASES, Moment, RankMoment
from ml_assets_tests.chaos.shop import SALES, STEPS, WEEKS, Shop
from ml_assets_tests.chaos.summary import KILLED

pytestmark = pytest.mark.timeout(900)

LATEST = 0.03
"""Seconds after an operation; most take less than that."""
PATIENCE = 180.0
"""Seconds a process may take; on an idle machine it needs a tenth."""


@dataclass(frozen=True)
class Unbroken:
    """Commands that nobody disturbed."""

    facts: Facts
    operations: dict[str, int]
    """Phase → how many operations it has: so many moments to die at."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Unbroken:
    """Result that every round must reach."""
    home = _new_home(tmp_path_factory.mktemp("unbroken"), _empty_tracker)
    _finish(home, user.start(home))
    assert_sound(Shop.at(home))
    return Unbroken(facts_of(Shop.at(home)), json.loads(home.with_name("operations").read_text()))


@pytest.fixture
def home(tmp_path: Path, _empty_tracker: Path) -> Path:
    """An empty home."""
    return _new_home(tmp_path, _empty_tracker)


def _new_home(folder: Path, tracker: Path) -> Path:
    # MLflow's tables are there already: making them takes seconds.
    home = folder / "home"
    home.mkdir()
    shutil.copy(tracker, home / "mlflow.db")
    return home


@pytest.mark.chaos
def test_the_same_commands_again_end_where_unbroken_ones_end(
    home: Path, unbroken: Unbroken, chaos_seed: int, record_property: Callable[[str, object], None]
) -> None:
    draw = random.Random(chaos_seed)
    of_a_rank = _rank_moment(home, draw) if chaos_seed % 3 == 1 else None
    moments = _moments(PHASES[chaos_seed % len(PHASES)], unbroken, draw)
    for moment in moments:
        killed = user.start(home, moment, of_a_rank)
        killed.join(PATIENCE)
        assert killed.exitcode == -signal.SIGKILL, user.said(home)
    _finish(home, user.start(home, None, of_a_rank))
    assert of_a_rank is None or Path(of_a_rank.mark).exists()
    record_property(KILLED, len(moments) + (of_a_rank is not None))
    assert_sound(Shop.at(home))
    assert facts_of(Shop.at(home)) == unbroken.facts
    # A killed publisher may leave the branch it was auditing on, which nobody merges.
    assert len(Shop.at(home).platform.lake.branches(layout.AUDIT)) <= len(moments)


def _moments(phase: str, unbroken: Unbroken, draw: random.Random) -> list[Moment]:
    """One in this phase; in some rounds the rerun dies as well, not earlier on its way."""
    phases = [phase]
    if draw.random() < 1 / 3:
        phases.append(draw.choice(PHASES[PHASES.index(phase) :]))
    return [
        Moment(one, draw.randint(1, unbroken.operations[one]), draw.choice((0.0, draw.uniform(0, LATEST))))
        for one in phases
    ]


def _rank_moment(home: Path, draw: random.Random) -> RankMoment:
    return RankMoment(
        rank=draw.randrange(2),
        step=draw.randint(1, STEPS // 2),  # a resumed attempt may have but the other half to do
        later=draw.uniform(0, LATEST),
        mark=str(home.with_name("killed")),
    )


def test_two_runs_of_everything_at_once_do_it_once(home: Path, unbroken: Unbroken) -> None:
    _finish(home, user.start(home), user.start(home))
    assert_sound(Shop.at(home))
    facts = facts_of(Shop.at(home))
    # Which of them judged and merged a partition, or both of them the same content, is a matter of chance.
    assert replace(facts, merges=unbroken.facts.merges, verdicts=unbroken.facts.verdicts) == unbroken.facts


def test_two_runs_publishing_to_one_table_at_once_lose_none(home: Path, unbroken: Unbroken) -> None:
    weeks, together = WEEKS[SALES], user.context().Barrier(2)
    left, right = weeks[:11], weeks[6:]
    _finish(home, *(user.start_launching(home, SALES, some, together) for some in (left, right)))
    shop = Shop.at(home)
    lake = shop.platform.lake
    assert TableReader.at(lake).digests(SALES) == unbroken.facts.contents[SALES]
    newest = shop.platform.ledger.newest_verdicts(SALES, weeks)
    assert Counter(row.status for row in newest.values()) == {"passed": len(weeks)}
    assert lake.branches(layout.AUDIT) == {}


@pytest.mark.chaos
def test_a_kill_while_the_tracker_is_made_does_not_spoil_the_home(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property(KILLED, 1)
    home = tmp_path / "home"
    home.mkdir()
    killed = user.start_tracking(home)
    # Its tables take it a second: half of them are there when the file has half its size.
    while killed.is_alive() and _largest(home) < 450_000:
        time.sleep(0.002)
    killed.kill()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL, user.said(home)
    _finish(home, user.start_tracking(home))
    assert [file.name for file in home.glob("*mlflow.db*") if "making" in file.name] == []


def _largest(home: Path) -> int:
    sizes = [0]
    for file in home.glob("*mlflow.db*"):
        with suppress(FileNotFoundError):  # a journal comes and goes with each transaction
            sizes.append(file.stat().st_size)
    return max(sizes)


def _finish(home: Path, *processes: multiprocessing.process.BaseProcess) -> None:
    """Wait for processes that have to succeed."""
    for process in processes:
        process.join(PATIENCE)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ended == [0] * len(processes), user.said(home)

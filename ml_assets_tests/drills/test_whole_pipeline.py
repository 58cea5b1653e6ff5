"""SIGKILL at any moment from an empty home to the registered version, of the command or of a worker: the same
commands again end where unbroken ones do, nothing lost, nothing doubled, nobody left behind.

Kills inside one part (lake, tables, tracker, training) have tests beside that part; here whole commands die.
"""

import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ml_assets.data.tables import layout
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.faults import pipeline_commands
from ml_assets_tests.faults.child_processes import finish
from ml_assets_tests.faults.demand_project import SALES, STEPS, WEEKS, DemandProject
from ml_assets_tests.faults.kill_points import LATEST_SECONDS, PHASES, RankKillPoint, random_kill_points
from ml_assets_tests.faults.pipeline_facts import PipelineFacts, assert_sound, facts_of
from ml_assets_tests.faults.summary import KILLED

pytestmark = pytest.mark.timeout(900)

PATIENCE = 180.0
"""Seconds a process may take; on an idle machine it needs a tenth."""


@dataclass(frozen=True)
class Unbroken:
    """Commands that nobody disturbed."""

    facts: PipelineFacts
    operations: dict[str, int]
    """Phase → how many operations it has: so many points to die at."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Unbroken:
    """Result that every round must reach."""
    home = _new_home(tmp_path_factory.mktemp("unbroken"), _empty_tracker)
    finish(pipeline_commands.start_all(home), seconds=PATIENCE)
    assert_sound(DemandProject.at(home))
    return Unbroken(facts_of(DemandProject.at(home)), json.loads(home.with_name("operations").read_text()))


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
    of_a_rank = _rank_kill_point(home, draw) if chaos_seed % 3 == 1 else None
    points = random_kill_points(PHASES[chaos_seed % len(PHASES)], unbroken.operations, draw)
    for point in points:
        killed = pipeline_commands.start_all(home, point, of_a_rank)
        assert killed.end(PATIENCE) == -signal.SIGKILL, killed.said()
    finish(pipeline_commands.start_all(home, None, of_a_rank), seconds=PATIENCE)
    assert of_a_rank is None or Path(of_a_rank.mark).exists()
    record_property(KILLED, len(points) + (of_a_rank is not None))
    assert_sound(DemandProject.at(home))
    assert facts_of(DemandProject.at(home)) == unbroken.facts
    # A killed publisher may leave the branch it was auditing on, which nobody merges.
    assert len(DemandProject.at(home).platform.lake.branches(layout.AUDIT)) <= len(points)


def _rank_kill_point(home: Path, draw: random.Random) -> RankKillPoint:
    return RankKillPoint(
        rank=draw.randrange(2),
        step=draw.randint(1, STEPS // 2),  # a resumed attempt may have but the other half to do
        later=draw.uniform(0, LATEST_SECONDS),
        mark=str(home.with_name("killed")),
    )


def test_two_runs_of_everything_at_once_do_it_once(home: Path, unbroken: Unbroken) -> None:
    finish(pipeline_commands.start_all(home), pipeline_commands.start_all(home), seconds=PATIENCE)
    assert_sound(DemandProject.at(home))
    facts = facts_of(DemandProject.at(home))
    # Which of them validated and merged a partition, or both of them the same content, is a matter of chance.
    assert replace(facts, merges=unbroken.facts.merges, verdicts=unbroken.facts.verdicts) == unbroken.facts


def test_two_runs_publishing_to_one_table_at_once_lose_none(home: Path, unbroken: Unbroken) -> None:
    weeks, together = WEEKS[SALES], pipeline_commands.context().Barrier(2)
    left, right = weeks[:11], weeks[6:]
    finish(
        *(pipeline_commands.start_launching(home, SALES, some, together) for some in (left, right)),
        seconds=PATIENCE,
    )
    project = DemandProject.at(home)
    lake = project.platform.lake
    assert TableReader.at(lake).digests(SALES) == unbroken.facts.contents[SALES]
    newest = project.platform.ledger.newest_verdicts(SALES, weeks)
    assert Counter(row.status for row in newest.values()) == {"passed": len(weeks)}
    assert lake.branches(layout.AUDIT) == {}


@pytest.mark.chaos
def test_a_kill_while_the_tracker_is_made_does_not_spoil_the_home(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property(KILLED, 1)
    home = _home_with_half_a_tracker(tmp_path)
    finish(pipeline_commands.start_tracking(home), seconds=PATIENCE)
    assert [file.name for file in home.glob("*mlflow.db*") if "making" in file.name] == []


def _home_with_half_a_tracker(folder: Path) -> Path:
    """Kill the process that makes the tracker half-way. On a busy machine it may be done before: then another one."""
    while True:
        home = Path(tempfile.mkdtemp(dir=folder))
        killed = pipeline_commands.start_tracking(home)
        # Its tables take it a second: half of them are there when the file has half its size.
        while killed.process.is_alive() and _largest(home) < 450_000:
            time.sleep(0.002)
        killed.process.kill()
        assert killed.end(PATIENCE) in (0, -signal.SIGKILL), killed.said()
        if not (home / "mlflow.db").exists():
            return home


def _largest(home: Path) -> int:
    sizes = [0]
    for file in home.rglob("mlflow.db*"):  # in a folder of its own until it is whole
        with suppress(FileNotFoundError):  # a journal comes and goes with each transaction
            sizes.append(file.stat().st_size)
    return max(sizes)

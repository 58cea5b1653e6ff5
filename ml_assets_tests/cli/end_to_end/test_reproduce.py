"""A version whose first launch was killed: the records of both launches, and its reproduction by more workers.

Everything is typed in a clone of this repository, because a launch records commit and difference of its source tree.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml_assets.foundation.checkout import ROOT
from ml_assets.model.release.releases import bundles_of, registry_of
from ml_assets.model.steps.train import DIFFERENCE, LaunchRecord, read_launches, source
from ml_assets_tests.cli.conftest import WEEK
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.resources.test_environment import git
from resources.platform import Platform
from resources.settings import Settings

pytestmark = pytest.mark.nightly

MODEL = "store_demand"
PIPELINE, NETWORK = (Path("ml_assets/defs/store_demand") / file for file in ("defs.yaml", "model.py"))
DECLARED = {
    "window: {train: 36, validation: 4, holdout: 8}": "window: {train: 8, validation: 2, holdout: 4}",
    "    epochs: 30\n": "    epochs: 6\n    determinism: bitwise\n",
    "    workers: 2\n": "    workers: 1\n",
    "resources: {nodes: 2, ": "resources: {",
    "    checkpoint_every_steps: 200\n": "    checkpoint_every_steps: 5\n",
    "    gates:\n": "    min_blocks: 4\n    gates:\n",
    "beats the baseline, metric: rmse, better_than: baseline": "learned anything, metric: rmse, at_most: 1000",
}
"""Changes of the declaration: fourteen weeks, one worker, bitwise."""
HELD = '''

import os
import time
from pathlib import Path

forward = Demand.forward


def wait_and_go_forward(self: Demand, *columns: torch.Tensor) -> torch.Tensor:
    """Wait after the first checkpoint as long as the file exists that the test made."""
    hold = Path(os.environ["DEMAND_HOLD"])
    while self.training and hold.exists() and list(hold.parent.glob("home/artifacts/training/CHECKPOINTS")):
        time.sleep(0.02)
    return forward(self, *columns)


Demand.forward = wait_and_go_forward
'''
CHECKPOINTS = f"{MODEL}/*/checkpoints/step-*"
PATIENCE = 600.0
"""Seconds."""


@dataclass(frozen=True)
class Typist:
    """Somebody who types commands in a source tree."""

    tree: Path
    home: Path
    environment: dict[str, str]

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin `ml-assets ARGUMENTS`."""
        return subprocess.Popen(
            [sys.executable, "-c", "from ml_assets.cli import main; main()", *arguments],
            cwd=self.tree,
            env=os.environ | {"ML_ASSETS_HOME": str(self.home)} | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Type `ml-assets ARGUMENTS`; return exit status and output."""
        command = self.begin(*arguments)
        said, _ = command.communicate()
        return command.returncode, said


@dataclass(frozen=True)
class Launched:
    """A version that two launches trained. The first was killed."""

    last: Typist
    platform: Platform
    first_record: bytes
    """Content of the record that the killed launch left, read before the second one."""
    killed_at: datetime
    tree_of: dict[str, tuple[str, str]]
    """Author of a launch → commit and difference of the tree in which it was typed."""

    @property
    def records(self) -> list[LaunchRecord]:
        """Return the records that the ledger names for the version's evaluation."""
        (row,) = self.platform.ledger.models.evaluations(MODEL)
        bundle = bundles_of(self.platform).open(registry_of(self.platform).version(MODEL, 1).bundle_digest)
        return read_launches(self.platform, MODEL, bundle.facts.lineage.fingerprint, row.launches)


def cloned(tree: Path, changes: dict[Path, Callable[[str], str]]) -> None:
    """Clone this repository's commit, and commit changed files there."""
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(tree))
    for file, change in changes.items():
        (tree / file).write_text(change((tree / file).read_text()))
    commit(tree, "another declaration")


def commit(tree: Path, message: str) -> None:
    git(tree, "-c", "user.name=ada", "-c", "user.email=ada@example.org", "commit", "-qam", message)


def declared(text: str) -> str:
    """Return the declaration with the changes of `DECLARED`."""
    for before, after in DECLARED.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def state_of(tree: Path) -> tuple[str, str]:
    """Return commit and uncommitted difference of a tree."""
    return git(tree, "rev-parse", "HEAD").strip(), git(tree, "diff", "HEAD")


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Launched:
    """Launch, kill the launch by its id after its first checkpoint, and launch again in a tree that moved on."""
    place = tmp_path_factory.mktemp("launches")
    tree, home, hold = place / "tree", place / "home", place / "hold"
    home.mkdir()
    hold.touch()
    (home / "mlflow.db").write_bytes(_empty_tracker.read_bytes())
    cloned(tree, {PIPELINE: declared, NETWORK: lambda text: text + HELD.replace("CHECKPOINTS", CHECKPOINTS)})
    for table, first in (("datasets/sales", "2023-09-04"), ("features/sales_features", "2023-10-02")):
        said = Terminal(home)("launch", table, f"{first}..{WEEK}")
        assert said.status == 0, said.err

    (tree / "README.md").write_text("changed by ada\n")
    common = {"DEMAND_HOLD": str(hold), "PYTHONPATH": str(tree)}
    trees = {"ada": state_of(tree)}
    command = Typist(tree, home, common | {"ML_ASSETS_AUTHOR": "ada"}).begin("launch", MODEL, WEEK)
    deadline = time.monotonic() + PATIENCE
    while not list(home.glob(f"artifacts/training/{CHECKPOINTS}")):
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(command.pid, signal.SIGKILL)
    command.communicate()
    killed_at = datetime.now(UTC)
    (record,) = home.glob(f"artifacts/launches/{MODEL}/*/*.json")
    before = record.read_bytes()

    commit(tree, "what ada changed")
    (tree / "CONTRIBUTING.md").write_text("changed by grace\n")
    about = place / "packages" / "museum_tools-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: museum-tools\nVersion: 1.0\n")
    hold.unlink()
    searched = {"PYTHONPATH": os.pathsep.join([str(tree), str(about.parent)])}
    trees |= {"grace": state_of(tree)}
    grace = Typist(tree, home, common | searched | {"ML_ASSETS_AUTHOR": "grace"})
    status, said = grace("launch", MODEL, WEEK)
    assert status == 0, said
    assert "version 1" in said
    assert record.read_bytes() == before
    return Launched(grace, Platform(Settings(home=home)), before, killed_at, trees)


def test_a_killed_launch_keeps_its_record_beside_the_next(launched: Launched) -> None:
    """Each has the code, packages, author and time of its own."""
    killed, finished = launched.records
    assert killed == LaunchRecord.from_json(launched.first_record.decode())
    for record in (killed, finished):
        commit, difference = launched.tree_of[record.author]
        assert (record.commit, record.is_dirty) == (commit, True)
        kept = source(launched.platform, record.difference, DIFFERENCE)
        assert hashlib.sha256(kept).hexdigest() == record.difference
        changed = [line for line in kept.decode().splitlines() if line.startswith("+changed by")]
        assert changed == [f"+changed by {record.author}"]
        assert changed[0] in difference
    assert (killed.author, finished.author) == ("ada", "grace")
    assert killed.commit != finished.commit
    assert killed.run_id != finished.run_id
    assert finished.packages == killed.packages | {"museum-tools": "1.0"}
    assert "museum-tools" not in killed.packages
    assert datetime.fromisoformat(killed.at) < launched.killed_at < datetime.fromisoformat(finished.at)


@pytest.mark.parametrize("workers", [2, 3])
def test_more_workers_reproduce_the_bits_of_one(launched: Launched, workers: int) -> None:
    """The command prints each comparison and the level; its exit status says that the level held."""
    status, said = launched.last("reproduce", f"{MODEL}/1", "--workers", str(workers))
    assert status == 0, said
    assert f"level that held with {workers} workers: weights; expected: weights" in said
    lines = [line for line in said.splitlines() if line.startswith("same ")]
    assert not [line for line in lines if "again: " in line and not line.endswith("again: equal")]
    assert {line.split()[1] for line in lines} >= {"snapshot", "weights", "bundle", "predictions", "holdout"}
    assert "OTHER" not in said

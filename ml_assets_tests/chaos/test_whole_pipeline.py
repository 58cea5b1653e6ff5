"""SIGKILL at any moment of ingest, training or registering: the same command again ends where an unbroken run
ends, with nothing lost and nothing doubled.

Kills inside one part (lake, tables, training) have tests beside that part; here a command of the platform dies
as a whole, at a random moment of the stage that the round's seed picks.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ml_assets.release.parts import registry_of
from ml_assets.tables.reader import TableReader
from resources.launcher.job import TrainingResult
from resources.platform import Platform
from resources.settings import Settings

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SALES = ("datasets/sales", "2023-01-02..2024-01-01")
FEATURES = ("features/sales_features", "2023-01-30..2024-01-01")
MODEL = ("store_demand", "2024-01-01")
STAGES = ("ingest", "train", "register")


def _lake_is_written(home: Path) -> bool:
    return any((home / "lake").glob("*/objects/*/*"))


def _training_has_begun(home: Path) -> bool:
    return any((home / "artifacts" / "training").glob("*/*"))


def _weights_are_final(home: Path) -> bool:
    return any((home / "artifacts" / "training").glob("*/*/result.json"))


BEGUN: dict[str, Callable[[Path], bool]] = {
    "ingest": _lake_is_written,
    "train": _training_has_begun,
    "register": _weights_are_final,
}


@dataclass(frozen=True)
class Unbroken:
    """What commands that nobody killed left behind, and how long their stages took."""

    prepared: Path
    """A home with sales and features, before the model."""
    seconds: dict[str, float]
    """From the first sign of a stage to the first sign of the next one."""
    outcome: dict[str, object]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """Every stage once, timed."""
    home = tmp_path_factory.mktemp("unbroken") / "home"
    ingest = _launch(home, SALES)
    ingesting = _moment(ingest, home, "ingest")
    _succeed(ingest)
    ingested = time.monotonic()
    _succeed(_launch(home, FEATURES))
    prepared = home.with_name("prepared")
    shutil.copytree(home, prepared)

    model = _launch(home, MODEL)
    training = _moment(model, home, "train")
    registering = _moment(model, home, "register")
    _succeed(model)
    return Unbroken(
        prepared=prepared,
        seconds={
            "ingest": ingested - ingesting,
            "train": registering - training,
            "register": time.monotonic() - registering,
        },
        outcome=_outcome(home),
    )


def test_the_same_command_again_ends_where_an_unbroken_one_ends(
    unbroken: Unbroken, tmp_path: Path, chaos_seed: int
) -> None:
    stage = STAGES[chaos_seed % len(STAGES)]
    home = tmp_path / "home"
    if stage != "ingest":
        shutil.copytree(unbroken.prepared, home)
    command = SALES if stage == "ingest" else MODEL

    broken = _launch(home, command)
    _moment(broken, home, stage)
    # Not a wait for something: the random moment itself.
    time.sleep(random.Random(chaos_seed).uniform(0, unbroken.seconds[stage]))
    broken.send_signal(signal.SIGKILL)
    broken.communicate()

    _succeed(_launch(home, command))
    outcome = _outcome(home)
    assert outcome == {name: unbroken.outcome[name] for name in outcome}
    assert _workers_of(home) == []


def _launch(home: Path, command: tuple[str, str]) -> subprocess.Popen[str]:
    """`ml-assets launch` as a process of its own."""
    return subprocess.Popen(
        [Path(sys.executable).with_name("ml-assets"), "launch", *command],
        env=os.environ | {"ML_ASSETS_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _succeed(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate()
    assert process.returncode == 0, said[-4000:]


def _moment(process: subprocess.Popen[str], home: Path, stage: str) -> float:
    """When the first sign of `stage` appears on disk."""
    while not BEGUN[stage](home):
        assert process.poll() is None, f"ended before {stage} began: {process.communicate()[0][-4000:]}"
        time.sleep(0.01)
    return time.monotonic()


def _outcome(home: Path) -> dict[str, object]:
    """Everything that must not depend on kills; the model's part only where a model was asked for."""
    platform = Platform(Settings(home=home))
    main = TableReader.at(platform.lake, "main")
    sales = dict(main.digests(SALES[0]))
    newest = platform.ledger.newest_verdicts(SALES[0])
    facts: dict[str, object] = {
        "sales on main": sales,
        "judged contents": {key: row.content_digest for key, row in newest.items()},
    }
    if not _weights_are_final(home):
        return facts
    results = [*(home / "artifacts" / "training").glob("*/*/result.json")]
    return facts | {
        "weights": [TrainingResult.read(path).weights_sha256 for path in results],
        "versions": [(one.number, one.gate_status) for one in registry_of(platform).versions(MODEL[0])],
        "tracked runs": _tracked_runs(platform),
        "kept branches": sorted(platform.lake.branches("keep-")),
    }


def _tracked_runs(platform: Platform) -> list[str]:
    """Status of every run of the model in MLflow."""
    from mlflow import MlflowClient

    client = MlflowClient(platform.settings.resolved_tracking_uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    return [run.info.status for run in client.search_runs(experiments)]


def _workers_of(home: Path) -> list[str]:
    """Command lines of processes that still work in `home`."""
    lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return [line.replace(b"\0", b" ").decode() for line in lines if str(home).encode() in line]

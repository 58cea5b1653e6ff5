"""Every drill passes and reports it, as text and as JSON.

Limits in seconds are those of an idle machine. A busy or slow one gets as much longer as it needs to start Python with
torch, which is most of a recovery.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ml_assets.cli.operate import NAMES, drill
from ml_assets.extras.drills.drills import DRILLS, DrillReport, perform, rehearse
from ml_assets.extras.drills.fixture import Fixture

IDLE_SECONDS = 2.0
"""Start of Python with torch on two idle cores."""


@pytest.fixture(scope="module")
def fixture() -> Iterator[Fixture]:
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:  # sockets need a short path
        yield Fixture(Path(folder))


def _slower() -> float:
    """Return how much slower than an idle machine this one starts Python with torch now, at least 1."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(1.0, (time.monotonic() - began) / IDLE_SECONDS)


def _is_only_late(report: DrillReport, slower: float) -> bool:
    """True if all checks that fail are about seconds, and hold on a machine that is `slower`."""
    late = [check for check in report.checks if not check.ok]
    return all(
        check.unit == "s" and float(check.measured) <= slower * float(check.wanted.split()[2])
        for check in late
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_training_survives(fixture: Fixture, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    slower = 1.0
    report = perform(name, fixture, lambda _: None)
    if not report.ok and _is_only_late(report, math.inf):
        slower = _slower()
        # Perhaps something else had the machine. A training that is slow to go on is so twice.
        report = rehearse(f"{name}-again", DRILLS[name], fixture, lambda _: None)
    with capsys.disabled():
        print("", *report.lines(), sep="\n")
    assert report.ok or _is_only_late(report, max(slower, _slower())), "\n".join(report.lines())
    assert all((fixture.folder / report.drill / file).exists() for file in ("events.jsonl", "attempts.jsonl"))


def test_the_command_knows_every_drill() -> None:
    assert set(NAMES) == set(DRILLS)


def test_a_program_reads_one_object_a_drill() -> None:
    told = CliRunner().invoke(drill, ["nan", "--json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout.splitlines()[-1])
    assert report["ok"]
    assert report["drill"] == "nan"
    assert {check["name"] for check in report["checks"]} >= {
        "training ended with",
        "newest complete checkpoint, step",
    }

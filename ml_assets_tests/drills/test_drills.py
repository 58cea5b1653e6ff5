"""Every drill passes and reports it, as text and as JSON. Limits in seconds hold on an idle machine."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ml_assets.cli.drill import NAMES, command
from ml_assets.drills.drills import DRILLS, perform, rehearse
from ml_assets.drills.fixture import Fixture


@pytest.fixture(scope="module")
def fixture() -> Iterator[Fixture]:
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:  # sockets need a short path
        yield Fixture(Path(folder))


@pytest.mark.parametrize("name", NAMES)
def test_a_training_survives(fixture: Fixture, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = perform(name, fixture, lambda _: None)
    if all(check.unit == "s" for check in report.checks if not check.ok) and not report.ok:
        # Only late: perhaps something else had the machine. A training that is slow to go on is so twice.
        report = rehearse(f"{name}-again", DRILLS[name], fixture, lambda _: None)
    with capsys.disabled():
        print("", *report.lines(), sep="\n")
    assert report.ok, "\n".join(report.lines())
    assert all((fixture.folder / report.drill / file).exists() for file in ("events.jsonl", "attempts.jsonl"))


def test_the_command_knows_every_drill() -> None:
    assert set(NAMES) == set(DRILLS)


def test_a_program_reads_one_object_a_drill() -> None:
    told = CliRunner().invoke(command, ["nan", "--json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout.splitlines()[-1])
    assert report["ok"]
    assert report["drill"] == "nan"
    assert {check["name"] for check in report["checks"]} >= {
        "training ended with",
        "newest complete checkpoint, step",
    }

"""Expected hours, money and start in `plan`, from the records of the pipeline."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ml_assets.context.home import make_home
from ml_assets.extras.costs.expected import Expectation, PastTraining, estimate, expected_from
from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.usage import UsageRecord, UsageState, UsedAttempt, UsedLaunch, usage_file
from ml_assets_tests.cli.conftest import WEEK
from ml_assets_tests.cli.terminal import Terminal
from resources.artifacts import Artifacts, artifacts_of
from resources.job.reserved import Reserved
from resources.settings import Settings

HOUR = 3600.0
KIND = ("ml_assets.defs.store_demand.model.build", 2)


def _record(number: int, hours: float, state: UsageState = "completed", **changes: Any) -> UsageRecord:
    """Return a training on one place of one core, which waited a minute for it."""
    began = 1e9 + number * 1e5
    reading = Reserved(
        job=f"job-{number}",
        at=began + 60 + hours * HOUR,
        began=began + 60,
        places=0,
        place_seconds=hours * HOUR,
        cores=1.0,
        memory_bytes=0,
        gpus=0,
    )
    launch = UsedLaunch(id="a", run_id="r", author="ada", began=began, at=reading.at, state=state)
    facts: dict[str, Any] = {
        "environment": "local",
        "env": "",
        "model": "store_demand",
        "partition": f"{number}",
        "fingerprint": f"{number:064d}",
        "launches": (launch,),
        "attempts": (UsedAttempt(reading=reading, gpus=0, gpu="", state=state, workers=KIND[1]),),
        "goodput": Goodput(queue=60, compute=hours * HOUR),
        "function": KIND[0],
    }
    return UsageRecord(**facts | changes)


def _store(artifacts: Artifacts, record: UsageRecord) -> None:
    folder, _ = usage_file(record.model, record.fingerprint)
    with artifacts.create(folder, f"{record.partition}.json") as stream:
        stream.write(record.to_json().encode())


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    found = Terminal(tmp_path / "home")
    make_home(Settings(home=found.home))
    return found


def _planned(terminal: Terminal) -> list[str]:
    said = terminal("plan", "store_demand", WEEK)
    assert said.status == 0, said.err
    return [line.removeprefix("  expected  ") for line in said.out.splitlines() if "  expected  " in line]


def test_a_plan_says_hours_and_money_with_intervals(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = artifacts_of(None, terminal.home / "artifacts")
    assert _planned(terminal) == ["no history: no training of store_demand has completed"]
    _store(artifacts, _record(0, 9.0, "failed"))
    assert _planned(terminal) == ["no history: no training of store_demand has completed"]
    for number in range(1, 10):
        _store(artifacts, _record(number, number / 10))
    for number in range(10, 13):
        _store(artifacts, _record(number, 50.0, function="another.function"))
    hours = "30.0 min (80 %: 6.0 min to 54.0 min), from 9 trainings with the same function and workers"
    assert _planned(terminal) == [hours]
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\ncore_hour: 10\n")
    monkeypatch.setenv("ML_ASSETS_PRICES", str(prices))
    assert _planned(terminal) == [hours, "5.00 (80 %: 1.00 to 9.00) EUR"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{", id="cut short"),
        pytest.param(replace(_record(1, 1.0), attempts=()).to_json(), id="no attempt"),
        pytest.param(_record(1, math.nan).to_json(), id="NaN"),
    ],
)
def test_a_damaged_record_is_said_and_the_plan_goes_on(terminal: Terminal, content: str) -> None:
    artifacts = artifacts_of(None, terminal.home / "artifacts")
    with artifacts.create("usage/store_demand", "1.json") as stream:
        stream.write(content.encode())
    (said,) = _planned(terminal)
    assert said.startswith("unknown: ")
    assert "1.json is damaged" in said


def _finished(hours: float, kind: tuple[str, int] = KIND, at: float = 0.0) -> PastTraining:
    return PastTraining(at=at, kind=kind, hours=hours, money=None, start_hours=hours / 10)


def test_others_of_the_pipeline_count_if_few_are_alike() -> None:
    others = [_finished(4.0, ("f", 8)) for _ in range(5)]
    assert expected_from([], KIND) == Expectation()
    few = expected_from([*others, _finished(1.0)], KIND)
    assert (few.trainings, few.is_alike) == (6, False)
    enough = expected_from([*others, *(_finished(1.0) for _ in range(3))], KIND)
    assert (enough.trainings, enough.is_alike, enough.start_hours) == (3, True, None)
    queued = expected_from([_finished(1.0)], KIND, has_queue=True)
    assert queued.start_hours is not None
    assert (queued.start_hours.middle, queued.start_hours.low) == (0.1, None)


def test_the_newest_trainings_count() -> None:
    history = [_finished(9.0, at=-float(number)) for number in range(1, 60)]
    found = expected_from([*history, *(_finished(1.0, at=float(number)) for number in range(50))], KIND).hours
    assert found is not None
    assert (found.low, found.middle, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 9, 12, 30])
def test_four_of_five_next_values_are_within_the_interval(count: int) -> None:
    generator, held = random.Random(3), 0
    for _ in range(2000):
        *history, value = (generator.lognormvariate(1, 0.7) for _ in range(count + 1))
        found = estimate(history)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= value <= found.high
    assert 0.75 <= held / 2000 <= 0.85


def test_waits_of_nothing_have_an_interval() -> None:
    none = estimate([0.0, 0.0, 0.0])
    assert (none.middle, none.low, none.high) == (0.0, 0.0, 0.0)
    some = estimate([0.0, 0.0, 2.0])
    assert some.low == 0.0
    assert some.high is not None
    assert some.high > 2.0

"""Report of a study: needs nothing else, counts costs honestly, and can be drawn for every study."""

import base64
import math
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from ml_assets.extras.tuning.optuna_parts import LEAST_TRIALS, MeasuredTrial, importances
from ml_assets.extras.tuning.study_report import StudyReport, costs, render, study_pictures, summary_markdown
from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import SpaceSection
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome
from resources.ledger import TrainedOn

EPOCHS = 10
SPACE = SpaceSection.model_validate(
    {
        "hyperparameters": {
            "hidden": {"kind": "int", "low": 8, "high": 128, "log": True},
            "activation": {"kind": "categorical", "choices": ["relu <b>", None, 3]},
        },
        "training": {
            "learning_rate": {"kind": "float", "low": 1e-4, "high": 0.1, "log": True},
            "warmup_fraction": {
                "kind": "float",
                "low": 0,
                "high": 0.5,
                "when": {"hyperparameters.activation": [3]},
            },
        },
    }
)


def _trial(number: int, state: Any = "finished", *, last: float = 0.5, epochs: int = EPOCHS) -> TrialOutcome:
    values = {
        "hyperparameters.hidden": 8 + number,
        "hyperparameters.activation": ("relu <b>", None, 3)[number % 3],
        "training.learning_rate": 1e-4 * 1.2**number,
        **({"training.warmup_fraction": 0.1} if number % 3 == 2 else {}),
    }
    losses = [last + 0.3 / epoch - 0.3 / epochs for epoch in range(1, epochs + 1)]
    return TrialOutcome(
        number=number,
        parameters=values,
        state=state,
        validation_loss=None if state == "failed" else last,
        epochs=epochs,
        most_epochs=EPOCHS,
        worker_seconds=360.0 * epochs,
        why="" if state == "finished" else "Diverged: the loss was <i>nan</i>",
        curve=tuple(enumerate(losses, start=1)),
    )


TRIALS = (
    _trial(0, last=0.5),
    _trial(1, "paused", last=0.7, epochs=2),
    _trial(2, "failed", epochs=5),
    _trial(3, last=0.4, epochs=8),
)


def _report(*trials: TrialOutcome, **importance: float) -> StudyReport:
    result = StudyResult(
        study="1" * 64,
        name="shop-1",
        model="shop & <i>friends</i>",
        partition="2024-01-20",
        snapshot="2" * 64,
        window=TrainedOn(commit="c", table="features/shop", first="a", last="b", partitions=2),
        seen=Days((("2024-01-01", "2024-01-15"),)),
        sampler="tpe",
        pruner="median",
        trials=trials,
    )
    lineage = {"study": "1" * 64, "Dagster run": "http://127.0.0.1:3000/runs/1", "odd": "javascript:x"}
    return StudyReport(result=result, space=SPACE, importance=importance, lineage=lineage)


def test_the_report_says_what_was_chosen_and_loads_nothing() -> None:
    report = _report(*TRIALS, **{"training.learning_rate": 0.9, "hyperparameters.hidden": 0.1})
    html = render(report)
    assert "Trial 3 is chosen: validation loss 0.4000" in html
    assert f"Chosen because {report.result.reason}." in html
    assert "shop &amp; &lt;i&gt;friends&lt;/i&gt;" in html
    assert "the loss was &lt;i&gt;nan&lt;/i&gt;" in html
    assert not re.search(r"<(script|link|iframe|i>|b>)", html.partition("How to read this")[0])
    assert re.findall(r'href="([^"]+)"', html) == ["http://127.0.0.1:3000/runs/1"]
    assert html.count("data:image/svg+xml;base64,") == 3
    order = re.findall(r"<td>(\w+) <span class=\"i\">(?:training|hyperparameters)", html)
    assert order == ["learning_rate", "hidden", "activation", "warmup_fraction"]
    assert "0 to 0.5; only with activation 3" in html
    assert html.count("not used") == 1
    states = re.findall(r'class="pill (\w+)"', html)
    assert states == ["chosen", "finished", "paused", "failed"]
    assert render(report) == html


def test_costs_are_counted_against_all_epochs_of_all_trials() -> None:
    """An hour is ten epochs of a worker. The failed trial's half hour is named apart."""
    report = _report(*TRIALS)
    epochs, hours = costs(report.result)
    assert (epochs.name, epochs.spent, epochs.full) == ("epochs", 20, 30)
    assert (hours.name, hours.spent, hours.full) == ("worker hours", pytest.approx(2.0), pytest.approx(3.0))
    html = render(report)
    assert "epochs saved: 27% by pruner median and 7% by early stopping" in html
    assert "1 failed trial with 0.5000 worker hours left out" in html
    assert "20 epochs of 30 of the full search, 33% saved" in summary_markdown(report, {})


def test_trainings_that_existed_cost_a_study_nothing() -> None:
    """Those of another study, of the model, and of an earlier trial with equal values save their part."""
    own, twin = (replace(_trial(number), fingerprint="own") for number in (0, 1))
    older = replace(_trial(2), epochs_before=EPOCHS, worker_seconds_before=3600.0)
    begun = replace(_trial(3), epochs_before=4, worker_seconds_before=1440.0)
    report = _report(own, twin, older, begun)
    epochs, hours = costs(report.result)
    assert (epochs.spent, epochs.full) == (16, 40)
    assert (hours.spent, hours.full) == (pytest.approx(1.6), pytest.approx(4.0))
    assert report.result.spent.worker_hours == pytest.approx(1.6)
    assert "epochs saved: 60% by trainings that existed" in render(report)


def test_a_script_saves_no_epochs_that_nobody_knows() -> None:
    script = [replace(_trial(number), most_epochs=0, epochs=40 * number, curve=()) for number in (0, 1)]
    report = _report(*script)
    assert [(one.name, one.full, one.saved) for one in costs(report.result)] == [("worker hours", None, None)]
    html = render(report)
    assert "saved:" not in html
    assert " of 0<" not in html
    summary = summary_markdown(report, {})
    assert "* 2.0000 worker hours\n" in summary
    assert "saved" not in summary


_ODD = {
    "one trial": (_trial(0),),
    "equal losses": (_trial(0), _trial(1), _trial(2)),
    "a huge loss": (_trial(0), _trial(1), _trial(2), _trial(3, last=1e30)),
    "negative losses": (_trial(0, last=-3.0), _trial(1, "paused", last=-1.0, epochs=1), _trial(2, last=0.0)),
    "a trial without a parameter": (replace(_trial(0), parameters={"hyperparameters.hidden": 8}), _trial(1)),
    "no curves": (replace(_trial(0), curve=()), replace(_trial(1), curve=())),
}


@pytest.mark.parametrize("name", _ODD)
def test_every_study_can_be_drawn(name: str) -> None:
    result = _report(*_ODD[name]).result
    drawn = study_pictures(result, SPACE, {})
    assert list(drawn) == ["history", "curves", "parallel"][:: 2 if name == "no curves" else 1]
    for data in drawn.values():
        assert base64.b64decode(data).startswith(b"\x89PNG")
        assert len(data) < 50_000


def _planted(number: int) -> list[MeasuredTrial]:
    """Return trials whose loss depends on the learning rate alone."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    drawn = random.Random(1)
    ranges = {
        "rate": FloatDistribution(1e-4, 0.1, log=True),
        "width": FloatDistribution(0.0, 1.0),
        "kind": CategoricalDistribution(("a", "b")),
    }
    trials: list[MeasuredTrial] = []
    for _ in range(number):
        values = {"rate": 10 ** drawn.uniform(-4, -1), "width": drawn.random(), "kind": drawn.choice("ab")}
        loss = (math.log10(values["rate"]) + 2) ** 2
        trials.append(MeasuredTrial(parameters=values, distributions=ranges, loss=loss))
    return trials


def test_the_parameter_that_decides_the_loss_is_the_most_important() -> None:
    shares = importances(_planted(24))
    assert next(iter(shares)) == "rate"
    assert shares["rate"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(_planted(LEAST_TRIALS - 1)) == {}

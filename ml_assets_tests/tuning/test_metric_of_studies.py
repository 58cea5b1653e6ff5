"""Metric of a study: its direction decides draws, pauses and the choice; the default keeps results as they were."""

import dataclasses
import json
import re
from typing import Any

import pytest
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection

from ml_assets.extras.tuning.prior import Prior
from ml_assets.extras.tuning.study import BegunTrial, Study, StudyFacts
from ml_assets.extras.tuning.study_report import StudyReport, render, study_pictures, summary_markdown
from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import PriorSection, SpaceSection, TuningSection
from ml_assets.model.steps.study_metric import BY_LOSS, StudyMetric
from ml_assets.model.steps.study_result import KnownPoint, StudyResult, TrialOutcome
from resources.ledger import TrainedOn

RATE = "training.learning_rate"
SPACE: dict[str, Any] = {"training": {"learning_rate": {"kind": "float", "low": 0.0, "high": 1.0}}}
EPOCHS = 9
FACTS = StudyFacts(model="shop", partition="2024-01-21", snapshot="2" * 64, decided_by={})
BY_AUC = StudyMetric(name="auc", direction="maximize", measured_by="objective binary")
WINDOW = TrainedOn(commit="c", table="features/shop", first="a", last="b", partitions=2)


def _result(metric: StudyMetric, *trials: TrialOutcome, inherited: Any = ()) -> StudyResult:
    return StudyResult(
        study="1" * 64,
        name="shop-1",
        model="shop",
        partition="2024-01-20",
        snapshot="2" * 64,
        window=WINDOW,
        seen=Days((("2024-01-01", "2024-01-15"),)),
        sampler="tpe",
        pruner="median",
        trials=trials,
        inherited=inherited,
        metric=metric.name,
        direction=metric.direction,
        measured_by=metric.measured_by,
    )


def _ended(trial: BegunTrial, metric: StudyMetric, paused: int | None) -> TrialOutcome:
    """Return an end whose metric is best at 0.3. By another metric than the loss, the loss says the opposite."""
    distance = abs(float(trial.parameters[RATE] or 0.0) - 0.3)
    common: dict[str, Any] = {"number": trial.number, "parameters": trial.parameters}
    if paused is not None:
        return TrialOutcome(**common, state="paused", validation_loss=1.0)
    if metric.is_validation_loss:
        return TrialOutcome(**common, state="finished", validation_loss=distance)
    value = metric.sign * distance
    return TrialOutcome(**common, state="finished", validation_loss=1 - distance, value=value)


def _searched(metric: StudyMetric, sampler: str, pruner: str, *, killed: bool = False) -> Study:
    """Run a study that begins from yesterday's points. A kill comes before the end of each trial."""
    storage = InMemoryStorage()
    section = TuningSection.model_validate(
        {"space": SPACE, "trials": 16, "sampler": sampler, "pruner": pruner, "prior": {}}
    )
    known = [
        BegunTrial(number=at, parameters={RATE: rate}, in_storage=at)
        for at, rate in enumerate((0.9, 0.35, 0.6))
    ]
    yesterday = _result(metric, *(_ended(one, metric, None) for one in known))
    prior = Prior.of(yesterday, section.space, section.prior, {}, metric)

    def opened() -> Study:
        return Study(storage, "shop-1", section, 7, FACTS, EPOCHS, prior, metric=metric)

    study = opened()
    while (trial := study.next()) is not None:
        if killed:
            study = opened()
            assert study.next() == trial
        losses = [abs(float(trial.parameters[RATE] or 0.0) - 0.3) + 1 / at for at in range(1, EPOCHS + 1)]
        paused = next(
            (at for at, loss in enumerate(losses, 1) if study.should_pause(trial, at, loss) and at < EPOCHS),
            None,
        )
        study.end(trial, _ended(trial, metric, paused))
    assert storage.get_study_directions(0) == [StudyDirection[metric.direction.upper()]]
    return study


@pytest.mark.parametrize("sampler", ["tpe", "GPSampler", "random"])
def test_a_metric_to_maximize_draws_as_its_negative_to_minimize(sampler: str) -> None:
    """Pauses too, whatever the direction: pruners compare validation losses. And so after kills."""
    by_loss = _searched(BY_LOSS, sampler, "median")
    for metric in (BY_AUC, dataclasses.replace(BY_AUC, direction="minimize")):
        by_metric = _searched(metric, sampler, "median", killed=True)
        drawn, expected = (
            [(one.parameters, one.state) for one in of.outcomes()] for of in (by_metric, by_loss)
        )
        assert drawn == expected
        moved = [metric.require_loss_of(one) for one in by_metric.inherited()]
        assert moved == pytest.approx([one.validation_loss for one in by_loss.inherited()])
        best = _result(metric, *by_metric.outcomes()).chosen
        assert best.parameters == _result(BY_LOSS, *by_loss.outcomes()).chosen.parameters
    assert {one.state for one in by_loss.outcomes()} >= {"finished", "paused"}


def _finished(number: int, loss: float, value: float | None = None) -> TrialOutcome:
    return TrialOutcome(
        number=number,
        parameters={RATE: 0.1 * (number + 1)},
        state="finished",
        validation_loss=loss,
        value=value,
        epochs=EPOCHS,
        most_epochs=EPOCHS,
        curve=((1, loss + 1), (EPOCHS, loss)),
    )


PAUSED = dataclasses.replace(_finished(3, 0.3), state="paused", epochs=2)
BY_METRIC = (_finished(0, 0.1, 0.6), _finished(1, 0.2, 0.9), _finished(2, 0.15, 0.7), PAUSED)


def test_the_direction_of_the_metric_decides_the_choice() -> None:
    highest = _result(BY_AUC, *BY_METRIC)
    assert highest.because == (
        "trial 1 has the highest auc of the validation rows, 0.9, of 3 finished trials; next is trial 2 with 0.7; 1 "
        "trial paused: training.learning_rate=0.2"
    )
    assert _result(dataclasses.replace(BY_AUC, direction="minimize"), *BY_METRIC).chosen.number == 0
    assert _result(BY_LOSS, *BY_METRIC).chosen.number == 0
    again = StudyResult.from_json(highest.to_json())
    assert (again, again.digest) == (highest, highest.digest)
    assert (
        _result(dataclasses.replace(BY_AUC, measured_by="objective x"), *BY_METRIC).digest != highest.digest
    )


def test_a_result_by_the_loss_is_written_as_before_there_were_metrics() -> None:
    """Its digest is its name: a result of a release without metrics must be found under it."""
    point = KnownPoint(parameters={RATE: 0.5}, validation_loss=0.5, window=WINDOW)
    result = _result(BY_LOSS, _finished(0, 0.5), inherited=(point,))
    facts = json.loads(result.to_json())
    assert "measured_by" not in facts
    assert not any("value" in one for one in (*facts["trials"], *facts["inherited"]))
    assert StudyResult.from_json(result.to_json()) == result


@pytest.mark.parametrize(
    "metric", [BY_LOSS, dataclasses.replace(BY_AUC, measured_by="objective quantile 0.5")]
)
def test_points_by_another_metric_are_left_out_with_the_reason(metric: StudyMetric) -> None:
    space = SpaceSection.model_validate(SPACE)
    result = _result(BY_AUC, *BY_METRIC)
    prior = Prior.of(result, space, PriorSection(), {}, metric)
    assert prior == Prior(left_out=prior.left_out)
    expected = (
        "its metric is auc, not validation_loss" if metric is BY_LOSS else "its auc is measured by objective"
    )
    assert re.match(rf"3 points of study {result.digest[:12]} left out: {expected}", prior.left_out)
    same = Prior.of(result, space, PriorSection(best=1, keep=0.9), {}, BY_AUC)
    assert [one.value for one in (*same.repeated, *same.seen)] == [0.9, 0.7]
    assert Prior.from_document(same.to_document()) == same


def test_the_report_shows_the_metric_beside_the_loss() -> None:
    result = _result(BY_AUC, *BY_METRIC)
    report = StudyReport(
        result=result, space=SpaceSection.model_validate(SPACE), importance={}, lineage={"study": "1" * 64}
    )
    html = render(report)
    assert "Trial 1 is chosen: auc of the validation rows 0.9000" in html
    cells = r'<td class="n">(0\.\d+)</td>\s*<td class="n">(0\.\d+)</td>\s*<td class="n">9 of 9'
    assert re.findall(cells, html) == [("0.9000", "0.2000"), ("0.7000", "0.1500"), ("0.6000", "0.1000")]
    assert "Importance needs 15 finished trials." in html
    assert re.sub(r"\s+", " ", html).count("paused trial has no auc") == 1
    assert "highest auc of the validation rows" in summary_markdown(report, {})
    assert list(study_pictures(result, report.space, {})) == ["history", "curves", "parallel"]

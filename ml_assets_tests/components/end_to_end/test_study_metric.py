"""A study by a metric of the evaluation: other values than by the loss, in both directions, and none of it read twice.

All trials start at another level and hardly learn, so the level decides loss and metrics.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import polars as pl
import pytest

from ml_assets.components import TrainingPipeline
from ml_assets.extras.tuning.chosen import chosen_for
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.study_metric import TRIAL_VALUE
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.end_to_end.test_objectives import (
    MULTICLASS,
    QUANTILE,
    RANKING,
    text_components,
)
from ml_assets_tests.components.installation import (
    Installation,
    failure_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.model_run import mlflow_run
from ml_assets_tests.components.objectives_pipeline import TEXT_TOKENS
from ml_assets_tests.components.readings_pipeline import (
    HOLDOUT,
    MODEL,
    VALIDATION,
    WINDOW,
    days,
    read_readings,
)
from ml_assets_tests.components.without_holdout import WithoutHoldout
from resources.job.events import RESULT

STUDY = f"{MODEL}/hyperparameters"
LOW, NEAR, HIGH = 1.0, 22.0, 44.0
"""Levels at which trials start. Labels lie around 23."""
KILL = "STUDY_METRIC_KILL"
"""Variable with the path of a file: while it exists, a process that measures a trial of `HIGH` ends itself."""

NOTE = "STUDY_METRIC_NOTE"
"""Variable with the path of the file that `noted` reads."""


def level(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Return the mean prediction."""
    found = float(np.average(prediction, weights=weight))
    if found > (NEAR + HIGH) / 2 and Path(os.environ.get(KILL, "/nowhere")).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return found


def depth(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Return the mean prediction, for a study that looks for the lowest; not defined for the lowest trial."""
    found = float(np.average(prediction, weights=weight))
    return found if found > (LOW + NEAR) / 2 else float("nan")


def noted(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Return the number of a file that is not there at first."""
    return float(Path(os.environ[NOTE]).read_text())


EVALUATION = readings_pipeline.PIPELINE["evaluation"] | {
    "metrics": [
        {"function": f"{__name__}.level", "better": "higher", "group": "machine"},
        {"function": f"{__name__}.depth", "better": "lower"},
        {"function": f"{__name__}.noted", "better": "lower"},
    ]
}
TUNING: dict[str, Any] = {
    "space": {"hyperparameters": {"start": {"kind": "categorical", "choices": [LOW, NEAR, HIGH]}}},
    "sampler": "grid",
    "trials": 3,
}


def _components(**tuning: Any) -> Any:
    changes = {
        "evaluation": EVALUATION,
        "training": readings_pipeline.PIPELINE["training"]
        | {"workers": 1, "epochs": 1, "learning_rate": 1e-6},
        "tuning": TUNING | tuning,
    }
    return readings_components(pipeline=changes)


def search(home: str) -> None:
    """Run the study by `level` in a process of its own, which ends itself while it measures."""
    Installation(Path(home), _components(metric="level", parallel_trials=2)).run(STUDY)


def _facts(installation: Installation) -> dict[str, Any]:
    result = installation.run(STUDY)
    assert result.success, failure_of(result)
    return {name: value.value for name, value in materialized(result, STUDY)[None].metadata.items()} | {
        "rows": [record.data for record in _table(materialized(result, STUDY)[None]).records],
        "observed": _observed(result),
    }


def _observed(result: dg.ExecuteInProcessResult) -> dict[Any, Any]:
    """Return trial → the value that the page of the study showed when the trial had finished."""
    shown = [
        {name: value.value for name, value in one.asset_observation_data.asset_observation.metadata.items()}
        for one in result.get_asset_observation_events()
    ]
    return {one["trial"]: one[TRIAL_VALUE] for one in shown if TRIAL_VALUE in one}


def _table(found: dg.AssetMaterialization) -> dg.TableMetadataValue:
    trials = found.metadata["trials"]
    assert isinstance(trials, dg.TableMetadataValue)
    return trials


@pytest.fixture
def home(tmp_path: Path, _empty_tracker: Path) -> Path:
    """Home whose MLflow has its tables."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "mlflow.db").write_bytes(_empty_tracker.read_bytes())
    return home


@pytest.fixture
def ready(home: Path) -> Installation:
    """Readings and features for one window."""
    return Installation(home, _components()).with_tables(1)


@pytest.mark.timeout(900)
def test_a_study_by_a_metric_chooses_other_values_than_by_the_loss(ready: Installation) -> None:
    """Both train the same two trials, once, and neither reads a row of the holdout."""
    two = {"space": {"hyperparameters": {"start": {"kind": "categorical", "choices": [NEAR, HIGH]}}}}
    by_loss = ready.declared_as(_components(**two))
    ready.platform.__dict__["launcher"] = WithoutHoldout(ready.platform.launcher)
    assert _facts(by_loss)["chosen"] == {"hyperparameters.start": NEAR}
    trainings = ready.settings.artifacts_folder / "training" / MODEL
    before = {file: file.stat().st_mtime_ns for file in trainings.glob(f"*/{RESULT}")}
    found = _facts(ready.declared_as(_components(metric="level", **two)))
    assert found["chosen"] == {"hyperparameters.start": HIGH}
    assert found["observed"] == {0: pytest.approx(NEAR, abs=1), 1: pytest.approx(HIGH, abs=1)}
    assert found["chosen because"].startswith("trial 1 has the highest level of the validation rows, 43.")
    assert {file: file.stat().st_mtime_ns for file in trainings.glob(f"*/{RESULT}")} == before
    assert len(before) == 2


@pytest.mark.timeout(900)
def test_a_trial_whose_metric_raised_is_measured_by_the_next_launch(
    ready: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the metric is the same, so the study is the same."""
    note = tmp_path / "note"
    monkeypatch.setenv(NOTE, str(note))
    one = {"space": {"hyperparameters": {"start": {"kind": "categorical", "choices": [NEAR]}}}}
    noting = ready.declared_as(_components(metric="noted", **one))
    said = failure_of(noting.run(STUDY))
    assert "The metric, resources, room or a store may be the reason of 1 failure" in said
    note.write_text("7.5")
    assert _facts(noting)["best noted of the validation rows"] == 7.5
    assert len(list((ready.settings.artifacts_folder / "training" / MODEL).glob(f"*/{RESULT}"))) == 1


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_study_by_a_metric_chooses_by_it_and_continues_after_a_kill(
    ready: Installation, tmp_path: Path
) -> None:
    home, kill = ready.settings.home, tmp_path / "kill"
    kill.touch()
    # A process dies while it measures a finished trial.
    paths = os.pathsep.join(path for path in sys.path if path)
    dead = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import search; search({str(home)!r})"],
        env=os.environ | {"PYTHONPATH": paths, KILL: str(kill)},
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()
    trainings = ready.settings.artifacts_folder / "training" / MODEL
    before = {file: file.stat().st_mtime_ns for file in trainings.glob(f"*/{RESULT}")}
    assert before

    by_level = ready.declared_as(_components(metric="level", parallel_trials=2))
    launcher = ready.platform.launcher
    ready.platform.__dict__["launcher"] = WithoutHoldout(launcher)
    found = _facts(by_level)
    ready.platform.__dict__["launcher"] = launcher
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert found["chosen"] == {"hyperparameters.start": HIGH}
    assert found["chosen because"].startswith("trial 2 has the highest level of the validation rows, 43.")
    assert [row["result"] for row in found["rows"]] == ["finished", "finished", "chosen"]
    assert found["best level of the validation rows"] == found["rows"][2]["level of the validation rows"]
    document = json.loads(Path(found["document"].removeprefix("file://")).read_text())
    assert (document["metric"], document["direction"]) == ("level", "maximize")
    assert document["measured_by"].startswith(f"{__name__}.level by machine, code ")
    page = Path(found["report_file"].removeprefix("file://")).read_text()
    assert "Trial 2 is chosen: level of the validation rows 43." in page
    parent = mlflow_run(ready, document["trials"][2]["mlflow_run"]).data.tags["mlflow.parentRunId"]
    assert mlflow_run(ready, parent).data.metrics["best_level"] == document["trials"][2]["value"]

    # The other direction, of a metric that is not defined for a trial: that trial failed.
    lowest = _facts(ready.declared_as(_components(metric="depth")))
    assert lowest["chosen"] == {"hyperparameters.start": NEAR}
    assert "metric changed from level to depth" in lowest["new study"]
    assert lowest["rows"][0]["result"].startswith("its depth of 96 validation rows was nan")

    # A metric of the objective is that of the evaluation: the loss of a regression is the square of its RMSE.
    by_rmse = _facts(ready.declared_as(_components(metric="rmse")))
    assert by_rmse["chosen"] == {"hyperparameters.start": NEAR}
    for row in by_rmse["rows"]:
        assert row["rmse of the validation rows"] ** 2 == pytest.approx(row["validation loss"], rel=1e-4)

    # Without a metric the loss decides. No study trained any values again.
    by_loss = _facts(ready)
    assert by_loss["chosen"] == {"hyperparameters.start": NEAR}
    assert by_loss["chosen because"].startswith("trial 1 has the lowest validation loss, ")
    assert len(list(trainings.glob(f"*/{RESULT}"))) == 3

    # A study by another metric learns nothing from this one, and says so.
    began = ready.declared_as(_components(metric="level", prior={"best": 1}, sampler="random", trials=1))
    assert "began from" not in _facts(began)
    *_, pipeline = _components()
    chosen = chosen_for(pipeline.spec, ready.platform, days(WINDOW + 1)[1:])
    assert chosen is not None
    assert "has the highest level of the validation rows" in chosen.says


def of_short_texts(perplexity: float) -> float:
    """Return the loss of texts that have fewer than T tokens: it divides nats by T - 1 (`docs/how-to/texts.md`)."""
    day = WINDOW + 1 - HOLDOUT - VALIDATION
    rows = pl.concat(read_readings(date.fromisoformat(key)) for key in days(VALIDATION, start=day))
    level = pl.when(pl.col("load") > 0.5).then(pl.lit("high")).otherwise(pl.lit("low"))
    letters = rows.select(pl.format("{} is {}", "machine", level).str.len_bytes()).to_series()
    predicted = float((letters.cast(pl.Float64) - 1).to_numpy().mean())
    return math.log(perplexity) * predicted / (TEXT_TOKENS - 1)


ONE_EPOCH = TuningSection.model_validate(
    {"space": {"training": {"epochs": {"kind": "categorical", "choices": [1]}}}, "trials": 1}
)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("components", "metric", "as_loss"),
    [
        pytest.param(MULTICLASS, "logloss", float, id="classes"),
        pytest.param(QUANTILE, "pinball", float, id="quantile"),
        pytest.param(text_components(), "perplexity", of_short_texts, id="texts"),
        pytest.param(RANKING, "ndcg", None, id="lists"),
    ],
)
def test_a_metric_on_the_validation_rows_agrees_with_the_loss_there(
    components: Any, metric: str, as_loss: Callable[[float], float] | None, home: Path
) -> None:
    """The workers measure the loss, the bundle the metric. A list has no loss that equals a metric."""
    *tables, pipeline = components
    tuned = pipeline.spec.model_copy(update={"tuning": ONE_EPOCH.model_copy(update={"metric": metric})})
    ready = Installation(home, [*tables, TrainingPipeline(tuned)]).with_tables(1)
    (row,) = _facts(ready)["rows"]
    value = row[f"{metric} of the validation rows"]
    if as_loss is None:
        assert 0 < value <= 1
    else:
        assert as_loss(value) == pytest.approx(row["validation loss"], rel=1e-4)

"""Slices on which predictions are too high or too low are found, and not by chance."""

from typing import Any

import numpy as np
import pytest

from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.holdout_rows import calibration_gaps, calibration_of_slices
from ml_assets.model.evaluation.evaluation_document import Evaluation
from ml_assets.model.evaluation.metrics.bootstrap import draw_blocks
from ml_assets.model.evaluation.report.chapters import calibration_chapters, direction
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import HoldoutCase


def spec(**changes: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate(
        {
            "objective": "binary",
            "slices": ["origin", "carrier"],
            "min_slice_rows": 100,
            "draws": 200,
            "gates": [{"name": "g", "metric": "auc", "at_least": 0.5}],
        }
        | changes
    )


@pytest.fixture(scope="module")
def evaluation(case: HoldoutCase) -> Evaluation:
    """Evaluation of a model that is too high by 0.2 on JFK alone."""
    shifted = case.challenger + 0.2 * (case.holdout["origin"] == "JFK").to_numpy()
    predictions = case.predictions(champion=False) | {"challenger": np.clip(shifted, 0, 1)}
    return evaluate(case.holdout, predictions, spec())


def test_it_is_the_mean_prediction_minus_the_mean_label(evaluation: Evaluation) -> None:
    for part in (evaluation.overall, *evaluation.slices):
        if part.value == "HA":  # too few rows
            assert part.calibration is None
            continue
        assert part.calibration is not None
        assert part.calibration.value == pytest.approx(
            part.prediction_mean["challenger"] - (part.label_mean or 0)
        )
        low, high = part.calibration.low, part.calibration.high
        assert None not in (low, high)
        assert low < part.calibration.value < high  # pyright: ignore


def test_a_page_names_the_slice_that_is_off_first(evaluation: Evaluation) -> None:
    (chapter,) = calibration_chapters(evaluation)
    said = "\n".join(chapter.to_markdown())
    assert "mean probability minus observed rate, of this model" in said
    rows = [line for line in said.splitlines() if "=" in line]
    assert rows[0].startswith("| origin=JFK")
    assert "too high" in rows[0]
    assert "too low" not in said
    assert "calibration error" in said


def test_calibrated_slices_are_off_by_chance_in_few_holdouts() -> None:
    """About 5 % of calibrated holdouts, so 10 of 200, have a slice among twelve that is called off."""
    rules, off = spec(draws=300), 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        blocks = np.repeat(np.arange(60), 40)
        gaps = random.normal(0, 0.4, 2_400) + random.normal(0, 0.05, 60)[blocks]
        cut = random.integers(0, 12, 2_400)
        slices = [np.flatnonzero(cut == value) for value in range(12)]
        found = calibration_of_slices(gaps, np.ones(2_400), slices, blocks, draw_blocks(60, 300, seed), rules)
        off += any(one is not None and direction(one) != "" for one in found[1:])
    assert off <= 15


def test_other_objectives_have_a_gap_of_their_own() -> None:
    y, p = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 2.0, 5.0])
    assert calibration_gaps("regression", y, p) == pytest.approx(p - y)
    assert calibration_gaps("quantile 0.9", y, p) == pytest.approx([0.1, 0.1, -0.9, 0.1])
    classes = np.array([[0.7, 0.3], [0.4, 0.6]])
    assert calibration_gaps("multiclass", np.array([0.0, 0.0]), classes) == pytest.approx([-0.3, 0.6])

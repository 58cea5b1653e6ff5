"""Holdouts of every objective with fixed rows and predictions, and all figures that a report shows of them.

`golden_figures.json` has the figures that an evaluation gave whose rows were all in memory: see `test_golden_figures`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.spec import InputColumns
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.comparison.curves import ScoredRows, threshold_table
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.holdout_rows import redraws_of
from ml_assets.model.evaluation.metrics.row_weights import weights_of
from ml_assets.model.evaluation.report_document import WorstSlices
from ml_assets.model.steps.snapshot import row_choice
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets_tests.portable import exp
from ml_assets_tests.snapshots.chosen_rows import chosen_rows

FIGURES = Path(__file__).with_name("golden_figures.json")
FIRST, DAYS, ROWS = date(2024, 1, 1), 16, 180
KEYS = [(FIRST + timedelta(n)).isoformat() for n in range(DAYS)]
NUMBERS, CATEGORIES = ["x", "y"], ["shop"]


@dataclass(frozen=True)
class GoldenCase:
    """One objective, with or without weights."""

    objective: str
    is_weighted: bool

    @property
    def name(self) -> str:
        """Name among the recorded figures."""
        return f"{self.objective}{', weighted' * self.is_weighted}"

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline."""
        facts = facts_of(self.objective)
        evaluation: dict[str, Any] = {
            "objective": self.objective,
            "bootstrap_unit": "partition_date",
            "draws": 200,
            "min_slice_rows": 40,
            "min_blocks": 3,
            "slices": ["region", {"column": "partition_date", "by": "month"}],
            "baseline": {"groups": ["region", "shop"]},
            "gates": [{"name": "better", "metric": facts.chosen_by, "better_than": "baseline"}],
        }
        if facts.is_zero_or_one:
            evaluation["bias"] = [{"column": "region", "threshold": 0.5, "min_rows": 20}]
            evaluation["costs"] = {"false_positive": 3, "false_negative": 1}
        if facts.has_lists:
            evaluation["group"] = "list"
        weight = {"weight": "w"} if self.is_weighted else {}
        return PipelineSpec.model_validate(
            {
                "name": "golden",
                "partitions": {"cadence": "daily", "start": KEYS[0], "end": KEYS[-1]},
                "features": {
                    "table": "features/golden",
                    "numeric": NUMBERS,
                    "categorical": CATEGORIES,
                    "label": "label",
                    "label_known_at": "known_at",
                    "primary_key": ["partition_date", "row"],
                    **weight,
                },
                "window": {"train": 10, "validation": 2, "holdout": 4},
                "model": {"function": "ml_assets_tests.components.readings_pipeline.build"},
                "evaluation": evaluation,
            }
        )

    def table(self) -> pl.DataFrame:
        """Return the rows of all days. Sums of labels and weights are exact, whatever their order."""
        draw = np.random.default_rng(11)
        rows = DAYS * ROWS
        x, y, noise = draw.normal(size=rows), draw.integers(0, 9, rows), draw.normal(size=rows)
        region, shop = draw.integers(0, 4, rows), draw.integers(0, 25, rows)
        level = x + 0.2 * y + 0.4 * region + noise
        label = {
            "regression": np.round(8 * level) / 8,
            "quantile 0.8": np.round(8 * level) / 8,
            "count": np.floor(np.abs(2 * level)),
            "binary": (level > 1.5).astype(float),
            "ranking 5": np.clip(np.floor(level), 0, 4),
            "multiclass": np.clip(np.floor(level), 0, 2),
        }[self.objective]
        day = np.repeat(np.arange(DAYS), ROWS)
        frame = pl.DataFrame(
            {
                "partition_date": [FIRST + timedelta(int(n)) for n in day],
                "row": np.tile(np.arange(ROWS), DAYS),
                "known_at": [datetime(2024, 1, 1, 20, tzinfo=UTC) + timedelta(int(n)) for n in day],
                "label": label,
                "w": 2.0 ** draw.integers(-1, 3, rows),
                "x": x,
                "y": y,
                "shop": [f"shop {n}" for n in shop],
                "region": [f"region {n}" for n in region],
                "list": day * 100 + np.tile(np.arange(ROWS) // 9, DAYS),
            }
        ).with_columns(x=pl.when(pl.col("y") == 3).then(None).otherwise(pl.col("x")))
        if self.objective == "multiclass":
            frame = frame.with_columns(pl.format("class {}", pl.col("label").cast(pl.Int64)).alias("label"))
        unknown = pl.when(pl.col("row") % 11 == 4).then(None).otherwise(pl.col("label"))
        return frame if facts_of(self.objective).has_lists else frame.with_columns(unknown.alias("label"))

    def snapshot(self, into: Path) -> tuple[Snapshot, FittedState]:
        """Build the snapshot of the table."""
        inputs = InputColumns(numeric=tuple(NUMBERS), categorical=tuple(CATEGORIES))
        chosen = chosen_rows(self.table(), *row_choice(self.spec, KEYS), inputs)
        source = SourceValues(table="features/golden", columns=("label",), partitions={KEYS[0]: "0" * 32})
        return build_snapshot(chosen, source=source, into=into), chosen.fitted

    def challenger(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return predictions of a model that knows some of the truth."""
        x, y = frame["x"].fill_null(0.0).to_numpy(), frame["y"].to_numpy()
        level = x + 0.2 * y
        if self.objective == "multiclass":
            scores = exp(-np.abs(level[:, None] - np.array([0.0, 1.0, 2.5])))
            return scores / scores.sum(axis=1, keepdims=True)
        if self.objective == "binary":
            return 1 / (1 + exp(1.5 - level))
        return np.abs(2 * level) if self.objective == "count" else level + 0.6


CASES = [
    GoldenCase(objective, is_weighted)
    for objective in ("binary", "regression", "quantile 0.8", "count", "multiclass", "ranking 5")
    for is_weighted in (False, True)
    if not (is_weighted and objective == "ranking 5")
]


def figures_of(
    case: GoldenCase,
    names: tuple[str, str],
    predictions: Mapping[str, NDArray[np.float64]],
    holdout: pl.DataFrame,
    validation: tuple[pl.DataFrame, NDArray[np.float64]],
    worst: WorstSlices | None,
    classes: tuple[str, ...],
) -> dict[str, Any]:
    """Return all figures of a holdout, whose labels are numbers, and of the thresholds chosen on `validation`."""
    spec, weight = case.spec.evaluation, "w" if case.is_weighted else None
    measured = evaluate(
        holdout,
        predictions,
        spec,
        label="label",
        weight=weight,
        classes=classes,
        baseline_name=names[0],
        reference_name=names[1],
    )
    thresholds = None
    if spec.costs is not None:
        rows, p = validation
        thresholds = threshold_table(
            spec.costs,
            ScoredRows.of(rows["label"], p, weights_of(rows, weight)),
            ScoredRows.of(holdout["label"], predictions["challenger"], weights_of(holdout, weight)),
            redraws_of(holdout, spec),
            spec.confidence,
        )
    return {
        "evaluation": measured.model_dump(mode="json"),
        "thresholds": None if thresholds is None else thresholds.model_dump(mode="json"),
        "worst": None if worst is None else worst.model_dump(mode="json"),
        "predictions": {role: p[::97].tolist() for role, p in predictions.items()},
    }


def flat(document: Any) -> Iterable[Any]:
    """Yield all numbers and words of a document, in its order."""
    if isinstance(document, dict):
        for key, value in document.items():  # pyright: ignore[reportUnknownVariableType]
            yield key
            yield from flat(value)
    elif isinstance(document, list):
        for value in document:  # pyright: ignore[reportUnknownVariableType]
            yield from flat(value)
    else:
        yield document

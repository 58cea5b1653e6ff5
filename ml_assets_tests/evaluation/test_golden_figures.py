"""Rows that are read in parts give the figures of rows that are all in memory, whatever the objective."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.split_reader import SPLITS, SplitName
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets.model.evaluation.comparison import baseline
from ml_assets.model.evaluation.comparison.worst_slices import worst_slices
from ml_assets.model.release.bundle_store import Question
from ml_assets.model.steps.champion import MeasuredRows, with_class_ids
from ml_assets.model.steps.comparators import fitted_comparators
from ml_assets_tests.evaluation.golden_case import (
    CASES,
    CATEGORIES,
    FIGURES,
    NUMBERS,
    GoldenCase,
    figures_of,
    flat,
)

RECORDED: dict[str, list[Any]] = json.loads(FIGURES.read_text())


def streamed(case: GoldenCase, folder: Path) -> list[Any]:
    """Return the figures as the step of an evaluation gets them: from partitions of a day each, by column."""
    snapshot, fitted = case.snapshot(folder)
    days = store_partitions(case.table(), "partition_date", folder / "table")
    rows: dict[SplitName, SplitScan] = {
        split: SplitScan(snapshot=snapshot, split=split, table=case.table().lazy(), partitions=days)
        for split in SPLITS
    }
    asked = Question(label="label", objective=case.objective, classes=fitted.classes)
    measured = MeasuredRows.of(case.spec, snapshot, rows["holdout"], asked)
    beside = fitted_comparators(case.spec, rows, fitted, measured)
    read = ["label", "w", *NUMBERS]
    challenger = np.concatenate([case.challenger(part) for part in rows["holdout"].parts(read, 100)])
    predictions = {"challenger": challenger, **beside.predictions}
    validation = with_class_ids(rows["validation"].read(read), "label", fitted.classes)
    worst = worst_slices(
        measured.holdout,
        predictions,
        case.spec.evaluation,
        label="label",
        weight=measured.weight,
        features=rows["holdout"].each([*NUMBERS, *CATEGORIES]),
        classes=fitted.classes,
    )
    names = beside.baseline_name, beside.reference_name
    return list(
        flat(
            figures_of(
                case,
                names,
                predictions,
                measured.holdout,
                (validation, case.challenger(validation)),
                worst,
                fitted.classes,
            )
        )
    )


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_figures_are_those_of_rows_in_memory(
    case: GoldenCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number and word that a report shows. On the machine that recorded them all digits were equal; another
    processor may multiply matrices in another order, so the last digits are left to it."""
    monkeypatch.setattr(baseline, "_MOST_WAITING", 1)
    found, recorded = streamed(case, tmp_path), RECORDED[case.name]
    assert [type(one) for one in found] == [type(one) for one in recorded]
    numbers = [(one, other) for one, other in zip(found, recorded, strict=True) if isinstance(other, float)]
    words = [(one, other) for one, other in zip(found, recorded, strict=True) if not isinstance(other, float)]
    assert [one for one, _ in words] == [other for _, other in words]
    assert [one for one, _ in numbers] == pytest.approx([other for _, other in numbers], rel=1e-9, abs=1e-12)

"""The registry of objectives: each stage has its part of each objective, and no stage decides by a name."""

import re
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ml_assets.foundation.objective_facts import NAMES, PADDING, ObjectiveName, UnknownObjective, facts_of
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.texts import NGrams, TokenSums, text_figures
from ml_assets.model.evaluation.report.report import render
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.training.step.objectives import objective_of
from ml_assets_tests.evaluation.holdout_case import model_facts

ROOT = Path(__file__).parents[1]


def test_no_code_decides_by_the_name_of_an_objective() -> None:
    """A comparison with a name would be a second place to change for a new objective."""
    compared = re.compile(rf"""objective (==|!=|in|not in) [\[("']*({"|".join(NAMES)})""")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for package in ("ml_assets", "resources")
        for path in (ROOT / package).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if compared.search(line)
    ]
    assert found == []


def _spec(name: ObjectiveName) -> EvaluationSpec:
    gate = {"name": "g", "metric": facts_of(name).metrics[0], "better_than": "baseline"}
    group = {"group": "date"} if facts_of(name).has_lists else {}
    return EvaluationSpec.model_validate({"objective": name, "draws": 100, "gates": [gate], **group})


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_has_its_part_of_an_objective(name: ObjectiveName) -> None:
    """Training finds a loss. An evaluation has a value for each metric and a picture for each page."""
    facts = facts_of(name)
    assert objective_of(name).reads_blob == facts.has_tokens
    assert facts.chosen_by in facts.metrics
    labels = np.tile([1.0, 2.0] if facts.has_tokens else [0.0, 1.0], 20)
    classes = ("no", "yes") if facts.has_classes else ()
    holdout = pl.DataFrame(
        {"label": labels, "date": [date(2013, 1, 1) + timedelta(days=i // 4) for i in range(len(labels))]}
    )
    p, half = 0.25 + 0.5 * labels, np.full(40, 0.5)
    texts = None
    if facts.has_tokens:
        tokens = np.tile([[0, 1, PADDING], [1, 1, 0]], (20, 1))
        model = NGrams.fit([tokens], 2, 2)
        sums = TokenSums.of(model.nats(tokens), tokens, 2)
        texts = text_figures({"challenger": sums, "baseline": sums}, model.counts_of_tokens())
    if classes or facts.columns:
        p, half = np.stack([1.25 - p if facts.columns else 1 - p, p], axis=1), np.stack([half, half], axis=1)
    predictions = {"challenger": p, "baseline": half, "reference": p}
    evaluation = evaluate(holdout, predictions, _spec(name), classes=classes, texts=texts)
    assert set(evaluation.values()) == set(facts.metrics)
    page = render(
        Report(title="m", partition="2013-01-10", lineage={}, model=model_facts(), evaluation=evaluation)
    )
    assert [picture for picture in facts.pictures if f'<img alt="{picture}"' not in page] == []


def test_a_pipeline_may_name_every_objective_and_no_other() -> None:
    assert [_spec(name).objective for name in NAMES] == list(NAMES)
    assert _spec("quantile 0.90").objective == "quantile 0.9"
    assert facts_of("quantile 0.9999999").name == "quantile 0.9999999"
    assert "99.99999 %" in facts_of("quantile 0.9999999").answer
    for share in ("", "1", "90 %", "nan"):
        with pytest.raises(UnknownObjective, match="needs a share between 0 and 1: `quantile"):
            facts_of(f"quantile {share}")
    assert _spec("ranking").objective == "ranking 10"
    for places in ("0", "-1", "2.5", "ten"):
        with pytest.raises(UnknownObjective, match="needs a number of places from 1: `ranking 10`"):
            facts_of(f"ranking {places}")
    with pytest.raises(UnknownObjective, match="objective 'previous_token' is unknown: use one of binary, "):
        facts_of("previous_token")

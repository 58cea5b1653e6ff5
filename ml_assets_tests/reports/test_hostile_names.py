"""Names from data on every page: classes, slices, columns and categories that look like markup stay text."""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ml_assets.components.pages import bullets, drift_in_markdown
from ml_assets.data.validation.profile import profile
from ml_assets.data.validation.table_drift import ColumnDrift, TableDrift
from ml_assets.extras.tuning.study_report import StudyReport, study_pictures
from ml_assets.extras.tuning.study_report import render as study_page
from ml_assets.extras.tuning.study_report import summary_markdown as study_summary
from ml_assets.foundation.reports.page import encoded
from ml_assets.foundation.reports.text import in_markdown, label, table_in_markdown, visible
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.report.card import model_card
from ml_assets.model.evaluation.report.report import render, summary_markdown
from ml_assets.model.evaluation.report_document import (
    ColumnImportance,
    Explanations,
    PartialDependence,
    Report,
)
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.steps.search_space import SpaceSection
from ml_assets.pages.partition_pictures import pictures_of_columns, pictures_of_rows
from ml_assets.use.live import performance_history
from ml_assets.use.live.performance import LiveInterval, SliceFigures
from ml_assets_tests.evaluation.holdout_case import model_facts
from ml_assets_tests.live.test_retrain import day
from ml_assets_tests.tuning.test_study_report import TRIALS
from ml_assets_tests.tuning.test_study_report import _report as study_report  # pyright: ignore[reportPrivateUsage]

NAMES = (
    "$0% - $60%",
    "<script>alert(1)</script>",
    "a | b",
    "`code` and **bold**",
    "two\nlines\r\n# and a heading",
    "_hidden_",
    "\\frac{1}{2} \\$ \\<b>",
    "![picture](https://elsewhere.example/x.png) [link](javascript:x)",
    "\u202eright to left \u05e9\u05dc\u05d5\u05dd",
    "\x00\x1b[31mred --> ]]>",
    "long " * 2_000,
    "https://elsewhere.example/approve",
    "",
)
"""Names that matplotlib, Markdown, HTML, XML or a terminal read as something else than text."""
_MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
_TEXT = {"text", "softbreak", "text_special"}


def _inline(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield kind and text of all parts of a document that a reader sees, but pictures of our own."""
    for block in _MARKDOWN.parse(markdown):
        if block.type == "html_block":
            yield block.type, block.content
        for part in block.children or ():
            if part.type == "image" and str(part.attrs["src"]).startswith("data:image/png;base64,"):
                continue
            yield part.type, part.content


def _own(markdown: str) -> list[str]:
    """Return the kinds of markup within the lines, but the bold headline of a page and the slanted note."""
    return sorted(
        {kind for kind, _ in _inline(markdown)}
        - _TEXT
        - {"strong_open", "strong_close", "em_open", "em_close"}
    )


def _shows(markdown: str, names: Sequence[str]) -> None:
    """Fail if a part of the document is markup, or the whole of a name is not in its text."""
    assert _own(markdown) == []
    seen = " ".join(" ".join(text for _, text in _inline(markdown)).split())
    for name in names:
        assert " ".join(visible(name).split()) in seen


def _holds(page: str) -> None:
    """Fail if a name began a tag of a page or is a link, or one of its pictures is no XML."""
    assert not re.search(r"<script|href=.https://elsewhere|\x00|\x1b|\u202e", page)
    drawn = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)
    for one in drawn:
        ElementTree.fromstring(base64.b64decode(one))


def _plain(markdown: str) -> str:
    return "".join(text for _, text in _inline(markdown))


@given(st.text() | st.text(alphabet="\\`*_[]()<>!#$|&;~-+=.1aé \n\t"))
def test_markdown_shows_exactly_the_characters_of_a_text(text: str) -> None:
    shown = visible(text).strip()
    for page in (in_markdown(text), f"* {in_markdown(text)}", f"## {in_markdown(text)}"):
        assert {kind for kind, _ in _inline(page)} <= _TEXT
        assert _plain(page).split() == shown.split()
    table = "\n".join(table_in_markdown(("a", "b"), [(text, "end")]))
    assert _plain(table).split() == ["a", "b", *shown.split(), "end"] or _plain(table) == f"ab{shown}end"


@given(st.text())
def test_a_label_is_short_and_can_be_read(text: str) -> None:
    shown = label(text)
    assert shown.strip()
    assert len(shown) <= 25
    assert not shown.startswith("_")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", shown)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_draws_a_name_as_text(name: str) -> None:
    def draw(axes: Any) -> None:
        axes.plot([0, 1], label=label(name))
        axes.set_title(label(name))
        axes.set_xticks([0, 1], [label(name), f"{label(name)} {label(name)}"])
        axes.legend()
        assert len(axes.get_legend().get_texts()) == 1

    ElementTree.fromstring(base64.b64decode(encoded(draw, "svg")))


@pytest.fixture(scope="module")
def report() -> Report:
    """Report of a model whose classes, slices and columns have the names, and whose gates fail on them."""
    random = np.random.default_rng(0)
    rows = 40 * len(NAMES) * 4
    label = np.arange(rows) % len(NAMES)
    holdout = pl.DataFrame(
        {"day": np.arange(rows) // 120, "band": [NAMES[at] for at in label], "label": label.astype(float)}
    )
    spec = EvaluationSpec.model_validate(
        {
            "objective": "multiclass",
            "bootstrap_unit": "day",
            "slices": ["band"],
            "min_slice_rows": 10,
            "draws": 100,
            "gates": [
                {"name": "each <b>band</b>", "metric": "accuracy", "at_least": 0.999, "slice": {"band": "*"}}
            ],
        }
    )
    shares = {
        role: random.dirichlet(np.ones(len(NAMES)), rows) for role in ("challenger", "baseline", "reference")
    }
    evaluation = evaluate(holdout, shares, spec, classes=NAMES)
    return Report(
        title="prices $1 - $2",
        partition="2013-12-31",
        lineage={"odd": NAMES[1]},
        model=model_facts(limits=[one for one in NAMES if one]),
        evaluation=evaluation,
        explanations=Explanations(
            metric="logloss",
            rows=rows,
            columns=tuple(ColumnImportance(column=one, added=Interval(0.1, 0.0, 0.2)) for one in NAMES),
            dependence=(
                PartialDependence(
                    column=NAMES[0], values=NAMES, means={one: (0.1,) * len(NAMES) for one in NAMES}
                ),
            ),
        ),
    )


def test_report_card_and_asset_page_show_names_as_text(report: Report) -> None:
    """A price band "$0% - $60%" ended the evaluation after its training was paid for."""
    _holds(render(report))
    card = model_card(report)
    _holds(card.to_html())
    _shows(card.to_markdown(), NAMES)
    _shows(summary_markdown(report), NAMES)
    _shows(bullets(report.evaluation.decision.reasons).md_str, ())


def test_pages_of_a_table_show_names_as_text() -> None:
    frame = pl.DataFrame({"band": NAMES, **{name or "empty": range(len(NAMES)) for name in NAMES}})
    profiles = {"2024-01-01": profile(frame), "2024-01-02": profile(frame)}
    for drawing in (*pictures_of_columns(profiles), *pictures_of_rows(profiles, {})):
        ElementTree.fromstring(base64.b64decode(drawing.svg))
    columns = tuple(
        ColumnDrift(column=one, past=(0.1,), distance=0.2, limit=0.1, declared=0.1) for one in NAMES
    )
    _shows(drift_in_markdown("2024-01-02", TableDrift(columns=columns, past=("2024-01-01",))), NAMES)


def test_pages_of_a_study_show_names_as_text() -> None:
    choices = {"kind": "categorical", "choices": list(NAMES[:8])}
    space = SpaceSection.model_validate({"hyperparameters": {"band": choices, "__class": choices}})
    trials = [
        replace(one, parameters=dict.fromkeys(space.dimensions, name))
        for one, name in zip(TRIALS, NAMES, strict=False)
    ]
    found = study_report(*trials)
    report = StudyReport(result=found.result, space=space, importance={}, lineage={})
    _holds(study_page(report))
    _shows(study_summary(report), NAMES[3:4])
    assert study_pictures(report.result, space, {})


def test_slices_of_a_live_day_are_drawn_under_any_name() -> None:
    figures = day("2024-01-02", 0.1, 2.0)
    rmse = {"rmse": LiveInterval(value=2.0, low=1.0, high=3.0)}
    slices = tuple(SliceFigures(slice=f"band={one}", rows=9, redrawn="rows", metrics=rmse) for one in NAMES)
    versions = tuple(one.model_copy(update={"slices": slices}) for one in figures.versions)
    assert "slices" in performance_history.pictures([figures.model_copy(update={"versions": versions})])

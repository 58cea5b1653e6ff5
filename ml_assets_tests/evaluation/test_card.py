"""The model card: declared words, measured figures, and limits that nobody has to write down."""

from dataclasses import replace

import pytest

from ml_assets.foundation.reports.page import Bullets, Chapter, Drawing, Grid, WrittenPage
from ml_assets.model.evaluation.comparison.gates import Champion
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.report import pictures
from ml_assets.model.evaluation.report.card import Release, model_card
from ml_assets.model.evaluation.report.report import render
from ml_assets.model.evaluation.report_document import (
    Explanations,
    NaiveChoice,
    NaiveGuess,
    PartialDependence,
    Report,
    SplitRows,
)
from ml_assets_tests.evaluation.holdout_case import HoldoutCase, model_facts
from ml_assets_tests.evaluation.test_report import make_report


@pytest.fixture(scope="module")
def report(case: HoldoutCase) -> Report:
    words = {"intended_use": "Tells <b>staff</b>.", "not_intended_for": ["Claims."], "limits": ["2013 only."]}
    made = make_report(case, Champion("version 7"))
    return made.model_copy(update={"model": model_facts(**words)})


def _items(page: WrittenPage, chapter: str) -> list[str]:
    return [
        item
        for one in page.chapters
        if one.title == chapter
        for block in one.blocks
        if isinstance(block, Bullets)
        for item in block.items
    ]


def test_declared_words_and_measured_limits_are_on_it(report: Report) -> None:
    page = model_card(report)
    assert _items(page, "Use") == ["Intended use: Tells <b>staff</b>.", "Not intended for: Claims."]
    limits = _items(page, "Limits")
    assert limits[0] == "2013 only."
    assert any("at least 0.9900, missed" in one for one in limits), "a failed gate is a limit"
    assert any("carrier=HA (" in one and "100 rows" in one for one in limits)


def test_a_model_without_an_error_says_so_in_card_and_report(case: HoldoutCase, report: Report) -> None:
    """A leak looks like that, and whoever relies on the model reads the card or the report first."""
    labels = case.holdout["label"].to_numpy()
    perfect = make_report(replace(case, challenger=0.1 + 0.8 * labels), None)
    page = model_card(perfect)
    assert "No error on the holdout, as with a leak" in page.headline
    (warning,) = [one for one in _items(page, "Limits") if "makes no error" in one]
    assert f"on the {len(labels):,} rows of the holdout" in warning
    assert "ml-assets leaktest" in warning
    assert warning in render(perfect)
    assert "no error" not in render(report).lower()


def test_a_picture_is_drawn_only_for_html(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card in a terminal took a second longer, for pictures that it leaves out."""
    dependence = PartialDependence(column="distance", values=(1.0, 2.0), means={"prediction": (0.1, 0.2)})
    explained = Explanations(metric="logloss", rows=100, columns=(), dependence=(dependence,))
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "encoded", lambda *_: pytest.fail("a picture was drawn"))
        page = model_card(report.model_copy(update={"explanations": explained}))
        page.to_markdown()
    drawings = [block for one in page.chapters for block in one.blocks if isinstance(block, Drawing)]
    assert "dependence on distance" in [one.name for one in drawings]
    assert page.to_html().count("data:image/svg+xml;base64,") == len(drawings)


def test_a_slice_among_many_is_worse_only_beyond_chance(report: Report) -> None:
    """An interval that just misses zero says something about one slice, and nothing about the worst of thirty."""
    evaluation = report.evaluation
    metric = evaluation.measured[0].name
    model = next(part for part in evaluation.slices if part.metrics)

    def said(slices: int, value: float) -> str:
        worse = Interval(value, value - 0.09, value + 0.09)
        part = model.model_copy(
            update={"improvements": {"baseline": {metric: worse}, "champion": {metric: worse}}}
        )
        some = evaluation.model_copy(update={"slices": (part,) * slices})
        return " ".join(_items(model_card(report.model_copy(update={"evaluation": some})), "Limits"))

    assert "is worse than" in said(1, -0.1)
    assert "is worse than" not in said(30, -0.1)
    assert "is worse than" in said(30, -0.3)


def test_naive_guesses_are_listed_with_the_best_one(report: Report) -> None:
    guesses = (
        NaiveGuess(name="mean by shop", value=0.71),
        NaiveGuess(name="last known label of shop", value=0.62),
        NaiveGuess(name="last known label of shop on the same weekday", value=None),
    )
    choice = NaiveChoice(metric="logloss", rows=300, guesses=guesses, chosen=guesses[1].name)
    with_choice = report.model_copy(update={"naive": choice})
    (chapter,) = [one for one in model_card(with_choice).chapters if one.title == "Naive guesses"]
    (grid,) = chapter.blocks
    assert isinstance(grid, Grid)
    assert [row[0] for row in grid.rows] == [one.name for one in guesses]
    assert [row[2] for row in grid.rows] == ["", "naive baseline", ""]
    assert chapter.note.startswith("on 300 validation rows")
    assert "last known label of shop on the same weekday" in render(with_choice)


def test_days_and_moments_are_written_for_people(report: Report) -> None:
    """Blocks may be sessions, whose first and last name says nothing."""
    holdout = SplitRows(
        split="holdout",
        first="2013-11-01",
        last="2013-12-31",
        rows=2400,
        left_out={"list without all of its rows": 12},
        known_by="2014-01-01T00:00:00+00:00",
    )
    page = model_card(report.model_copy(update={"splits": (holdout,)}))
    limits = _items(page, "Limits")
    assert "Measured on 2013-11-01 to 2013-12-31. Nothing here says how it does on later rows." in limits
    assert limits[-1].endswith("(12). A label of this split counts if it was known by 2014-01-01 00:00 UTC.")
    assert "T00:00" not in page.to_html()


def test_a_released_version_has_its_standing_and_what_became_known_since(report: Report) -> None:
    release = Release(
        number=3,
        semantic="1.2.0",
        stage="production",
        history=("2013-12-31 09:00 UTC, promoted by ada: better.",),
        objections=("Training inputs were rejected since: datasets/flights 2013-10-01.",),
    )
    page = model_card(report, release)
    assert page.about.startswith("version 3 (1.2.0), production · partition 2013-12-31 · evaluation ")
    assert _items(page, "Promotions") == ["2013-12-31 09:00 UTC, promoted by ada: better."]
    assert release.objections[0] in _items(page, "Limits")


def test_both_forms_hold_the_same_text_and_no_html_of_others(report: Report) -> None:
    page = model_card(report)
    html, markdown = page.to_html(), page.to_markdown()
    assert "Tells &lt;b&gt;staff&lt;/b&gt;." in html
    assert "Tells \\<b>staff\\</b>." in markdown
    assert html.count("data:image/svg+xml;base64,") == 2
    assert "base64" not in markdown
    for chapter in page.chapters:
        assert f"## {chapter.title}" in markdown
        assert f"<h2>{chapter.title}" in html


def test_backslashes_do_not_undo_an_escape() -> None:
    grid = Grid(("what",), ((r"a\|b",), (r"\<script>",)))
    page = WrittenPage("t", r"\\<b>", "h", "blessed", (Chapter("c", (grid,)),))
    assert page.to_markdown().splitlines()[2] == r"\\\\\<b>"
    assert [line.split()[1] for line in page.to_markdown().splitlines()[-2:]] == [r"a\\\|b", r"\\\<script>"]


def test_a_bar_or_a_new_line_in_a_cell_does_not_break_a_table() -> None:
    grid = Grid(("what", "rows"), (("a | b", "1"), ("two\nlines", "12345")), numbers=frozenset({1}))
    page = WrittenPage("t", "", "h", "blessed", (Chapter("c", (grid,)),))
    assert page.to_markdown().splitlines()[-4:] == [
        "| what      |  rows |",
        "| --------- | ----: |",
        r"| a \| b    |     1 |",
        "| two lines | 12345 |",
    ]

"""Report for a reviewer: two self-contained pages of HTML, with the JSON and the model card beside them.

This module only arranges numbers and sentences. The layout is `report.html.j2`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_assets.foundation.objective_facts import facts_of
from ml_assets.foundation.reports.page import Bullets, Chapter, as_markdown, rendered
from ml_assets.foundation.reports.text import in_markdown, table_in_markdown
from ml_assets.model.evaluation.comparison import sentences
from ml_assets.model.evaluation.comparison.gates import distance_to_limit
from ml_assets.model.evaluation.evaluation_document import (
    ClassFigures,
    Evaluation,
    GateDecision,
    Part,
    RuleResult,
)
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.metrics.metrics import MetricFacts
from ml_assets.model.evaluation.report import chapters
from ml_assets.model.evaluation.report.card import model_card
from ml_assets.model.evaluation.report.pictures import (
    COLOURS,
    caption,
    dependence_drawn_later,
    headline,
    pictures,
)
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import Comparator
from resources.job.events import Recovery

MOST_SLICES = 12
"""Slices per cut that the report shows: the largest. The JSON has all."""
MOST_CASES = 3
"""Slices per rule that the report shows singly: the worst."""
MOST_CLASSES_SHOWN = 20
"""Classes that the report shows: those with most rows. The JSON has all."""
MOST_RECOVERIES = 8
"""Interruptions of the training that the report shows: those that repeated most rows, then the longest. The JSON has
all."""

_WORST_FIRST = ("failed", "undecided", "passed", "not_applicable")


@dataclass(frozen=True)
class ReportFiles:
    """Files of a written report."""

    html: Path
    json: Path
    cards: tuple[Path, Path]
    """Model card as HTML and as Markdown."""


@dataclass(frozen=True)
class Whisker:
    """Interval on a scale, in percent of the scale's width."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class SliceRow:
    """One line of the slice table."""

    part: Part
    metric: Interval
    metric_at: Whisker | None
    improvement: Interval
    improvement_at: Whisker | None


@dataclass(frozen=True)
class Scale:
    """Ends of an axis."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return the position of `value` in percent of the axis."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def place(self, one: Interval) -> Whisker | None:
        """Return an interval's position on this axis; None if a value or an end is missing."""
        if one.value is None or one.low is None or one.high is None:
            return None
        return Whisker(self.at(max(one.low, self.low)), self.at(one.value), self.at(min(one.high, self.high)))


def write_report(report: Report, folder: Path) -> ReportFiles:
    """Write `report.html`, the model card, and `evaluation.json` (the `Report`, read back by `model_validate_json`).

    `folder` belongs to this report alone. If it already holds the complete report, nothing is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cards = (folder / "model_card.html", folder / "model_card.md")
    files = ReportFiles(folder / "report.html", folder / "evaluation.json", cards)
    content = report.to_json()
    if files.json.is_file() and files.json.read_text(encoding="utf-8") == content:
        return files
    # Write the JSON last: its presence marks the report as complete.
    files.html.write_text(render(report), encoding="utf-8")
    card = model_card(report)
    for path, text in zip(files.cards, (card.to_html(), card.to_markdown()), strict=True):
        path.write_text(text, encoding="utf-8")
    files.json.write_text(content, encoding="utf-8")
    return files


def render(report: Report) -> str:
    """Return the HTML. A pure function: the same report gives the same bytes."""
    evaluation = report.evaluation
    drawn = pictures(evaluation, report.loss, form="svg")
    metric = evaluation.measured[0]
    against = sentences.comparator_of(evaluation)
    cuts = list(dict.fromkeys(part.slice for part in evaluation.slices))
    return rendered(
        __package__ or "",
        "report.html.j2",
        {"measured": sentences.with_interval, "gain": sentences.gain, "half": sentences.half_width},
        report=report,
        evaluation=evaluation,
        metrics=evaluation.measured,
        objective=facts_of(evaluation.objective),
        classes=_largest(evaluation.classes),
        lists="" if evaluation.lists is None else sentences.lists_in_words(evaluation.lists),
        plain=sentences.plain_findings(evaluation),
        weighted=sentences.weighted(report),
        reasons=evaluation.decision.reasons,
        recoveries=_longest(report.recoveries),
        survived=sentences.survived(report),
        rules=_rule_rows(evaluation.decision),
        transitions={to: _rule_rows(one) for to, one in evaluation.transitions.items()},
        chapters=_chapters(report),
        pictures=drawn,
        captions={name: caption(name, evaluation) for name in drawn},
        colours=COLOURS,
        metric=metric,
        against=against,
        cuts=[(cut, *_slice_rows(evaluation, cut, metric, against)) for cut in cuts],
        overall_at=_scale(evaluation, metric).at(
            evaluation.overall.metrics["challenger"][metric.name].value or 0
        ),
        zero_at=_improvement_scale(evaluation, metric, against).at(0),
    )


def headline_markdown(report: Report) -> str:
    """Return decision, metrics of all models with intervals, and one picture of them, as Markdown for an asset page."""
    evaluation = report.evaluation
    lines = [
        f"**{in_markdown(evaluation.decision.summary)}**",
        "",
        *_metrics(evaluation),
        "",
        *as_markdown(headline(evaluation)),
    ]
    return "\n".join(lines)


def _metrics(evaluation: Evaluation) -> list[str]:
    """Return a table in Markdown: a line for each metric, a column for each model."""
    roles = list(evaluation.overall.metrics)
    rows = [
        (
            metric.label,
            *(sentences.with_interval(evaluation.overall.metrics[role][metric.name]) for role in roles),
        )
        for metric in evaluation.measured
    ]
    return table_in_markdown(("metric", *roles), rows)


def summary_markdown(report: Report, images: dict[str, str] | None = None) -> str:
    """Return decision, metrics and pictures as Markdown for an asset page.

    `images` are base64 PNGs by name; they are drawn unless given.
    """
    evaluation = report.evaluation
    found = in_markdown(" ".join(sentences.plain_findings(evaluation)))
    lines = [f"**{in_markdown(evaluation.decision.summary)}** {found}", ""]
    said = [*evaluation.decision.reasons]
    if by_weight := sentences.weighted(report):
        said.append(by_weight)
    if report.recoveries:
        said.append(f"The training was {sentences.survived(report)}.")
    said += sentences.left_out(report)
    drawn = images
    if drawn is None:
        dependence = dependence_drawn_later(report.explanations, "png")
        drawn = pictures(evaluation, report.loss) | {name: draw() for name, draw in dependence.items()}
        lines += [*as_markdown(headline(evaluation)), ""]
    lines += [*_metrics(evaluation), "", *Bullets(tuple(said)).to_markdown()]
    for chapter in _chapters(report):
        lines += ["", *chapter.to_markdown()]
    lines += ["", *as_markdown(drawn)]
    return "\n".join(lines)


def _chapters(report: Report) -> list[Chapter]:
    """Return the parts of report and asset page that need no layout of their own."""
    objective = report.evaluation.objective
    return [
        *chapters.naive_chapters(report.naive, objective),
        *chapters.threshold_chapters(report.thresholds),
        *chapters.explanation_chapters(report.explanations, objective),
        *chapters.calibration_chapters(report.evaluation),
        *chapters.bias_chapters(report.evaluation),
        *chapters.worst_slices_chapters(report.worst_slices),
        *chapters.serving_chapters(report.evaluation.serving),
    ]


def _longest(recoveries: Sequence[Recovery]) -> list[Recovery]:
    """Return the interruptions that the report shows, in the order in which they happened.

    Chosen by the rows they repeated, then by their seconds.
    """
    worst = sorted(recoveries, key=lambda one: (one.rows_repeated or 0, one.seconds), reverse=True)
    return [one for one in recoveries if one in worst[:MOST_RECOVERIES]]


def _largest(classes: Sequence[ClassFigures]) -> list[ClassFigures]:
    """Return the classes that the report shows, in their order."""
    most = sorted(classes, key=lambda one: one.rows, reverse=True)[:MOST_CLASSES_SHOWN]
    return [one for one in classes if one in most]


@dataclass(frozen=True)
class RuleRow:
    """One rule in the table: the results shown, and a line that counts the others."""

    shown: tuple[RuleResult, ...]
    rest: str


def _rule_rows(decision: GateDecision) -> list[RuleRow]:
    names = dict.fromkeys(one.rule for one in decision.rules)
    return [_rule_row([one for one in decision.rules if one.rule == name]) for name in names]


def _rule_row(alike: Sequence[RuleResult]) -> RuleRow:
    ordered = sorted(alike, key=lambda one: (_WORST_FIRST.index(one.status), distance_to_limit(one)))
    if len(ordered) == 1:
        return RuleRow(tuple(ordered), "")
    bad = [one for one in ordered if one.status in ("failed", "undecided")]
    # Show each sentence once: a champion that has seen the holdout makes every slice undecided in the same words.
    telling = list({one.explanation: one for one in reversed(bad)}.values())[::-1]
    shown = tuple(telling[:MOST_CASES] or ordered[:1])
    hidden = [one for one in ordered if one not in shown]
    counts = {status: sum(one.status == status for one in hidden) for status in _WORST_FIRST}
    said = {"not_applicable": "not checked: too few rows"}
    rest = ", ".join(f"{count} {said.get(status, status)}" for status, count in counts.items() if count)
    return RuleRow(shown, f"further slices: {rest}" if rest else "")


def _slice_rows(
    evaluation: Evaluation, cut: str | None, metric: MetricFacts, against: Comparator
) -> tuple[list[SliceRow], list[Part], int]:
    """Return the measured slices of one cut (largest first; months in order), the small slices, the number left out."""
    parts = [part for part in evaluation.slices if part.slice == cut]
    large = [part for part in parts if part.metrics]
    if cut != "month":
        large.sort(key=lambda part: -part.rows)
    scale = _scale(evaluation, metric)
    improvement_scale = _improvement_scale(evaluation, metric, against)
    figures = (
        (part, part.metrics["challenger"][metric.name], part.improvements[against][metric.name])
        for part in large
    )
    rows = [
        SliceRow(part, value, scale.place(value), gain, improvement_scale.place(gain))
        for part, value, gain in figures
    ]
    small = sorted((part for part in parts if not part.metrics), key=lambda part: -part.rows)
    return rows[:MOST_SLICES], small, max(len(rows) - MOST_SLICES, 0)


def _scale(evaluation: Evaluation, metric: MetricFacts) -> Scale:
    parts = (evaluation.overall, *evaluation.slices)
    return _span([part.metrics["challenger"][metric.name] for part in parts if part.metrics])


def _improvement_scale(evaluation: Evaluation, metric: MetricFacts, against: Comparator) -> Scale:
    parts = (evaluation.overall, *evaluation.slices)
    found = [part.improvements[against][metric.name] for part in parts if part.metrics]
    return _span([*found, Interval(0.0, 0.0, 0.0)])


def _span(intervals: Sequence[Interval]) -> Scale:
    ends = [end for one in intervals for end in (one.low, one.value, one.high) if end is not None]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    room = 0.03 * (high - low) or 0.5
    return Scale(low - room, high + room)

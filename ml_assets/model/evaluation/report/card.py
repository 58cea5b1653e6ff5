"""Model card: a model for people who did not build it. Made from the report of an evaluation, and from nothing else.

Sections follow "Model Cards for Model Reporting" (Mitchell et al., 2019): use, data, metrics, slices, limits, lineage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ml_assets.foundation.objective_facts import facts_of
from ml_assets.foundation.reports.page import Block, Bullets, Chapter, Drawing, Grid, Paragraph, WrittenPage
from ml_assets.foundation.reports.text import count
from ml_assets.model.evaluation.comparison import sentences
from ml_assets.model.evaluation.evaluation_document import Evaluation, Part, RuleResult
from ml_assets.model.evaluation.metrics.bootstrap import among
from ml_assets.model.evaluation.metrics.metrics import MetricFacts
from ml_assets.model.evaluation.report import chapters
from ml_assets.model.evaluation.report.pictures import caption, drawn_later
from ml_assets.model.evaluation.report_document import ModelFacts, Report
from resources.words import counted, dotted, name_some

WEAKEST = 8
"""Slices that the card shows: those with the worst metric. The report has more, `evaluation.json` all."""
_NAMED = 12
"""Columns and small slices that a sentence names. It counts the others."""
_DRAWN = ("calibration", "coverage", "ranking", "depth", "confusion", "fit")
"""Pictures of the report that the card shows, where the objective has them."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Standing of a registered version, as the ledger has it when the card is made."""

    number: int
    semantic: str
    stage: str
    history: tuple[str, ...]
    """Promotions and demotions, one sentence each, oldest first."""
    objections: tuple[str, ...] = ()
    """Facts that became known after the evaluation, such as inputs that were rejected since."""


def model_card(report: Report, release: Release | None = None) -> WrittenPage:
    """Return the card of the model in `report`; with `release`, as a registered version."""
    evaluation, facts = report.evaluation, report.model
    named = [] if release is None else [f"version {release.number} ({release.semantic}), {release.stage}"]
    about = [*named, f"partition {report.partition}", f"evaluation {report.digest[:12]}"]
    written = [
        Chapter("Use", tuple(_use(facts))),
        Chapter("Prediction", tuple(_prediction(evaluation, facts))),
        Chapter(
            "Data", tuple(_data(report)), "label known by: rows whose label became known later are left out"
        ),
        Chapter("Metrics", tuple(_metrics(evaluation)), _how_measured(evaluation)),
        *chapters.naive_chapters(report.naive, evaluation.objective),
        *chapters.threshold_chapters(report.thresholds),
        *chapters.explanation_chapters(report.explanations, evaluation.objective),
        *chapters.bias_chapters(evaluation),
        Chapter("Gates", (_gates(evaluation),)),
        *_slices(evaluation),
        *chapters.serving_chapters(evaluation.serving),
        *chapters.calibration_chapters(evaluation),
        *chapters.worst_slices_chapters(report.worst_slices),
        Chapter("Limits", (Bullets(tuple(_limits(report, release))),)),
        Chapter("Training", tuple(_training(report))),
        *(
            []
            if release is None or not release.history
            else [Chapter("Promotions", (Bullets(release.history),))]
        ),
        Chapter("Lineage", (Grid(("what", "identity"), tuple(report.lineage.items()), has_addresses=True),)),
    ]
    return WrittenPage(
        title=f"Model card: {report.title}",
        about=" · ".join(about),
        headline=evaluation.decision.summary,
        tone=evaluation.decision.status,
        chapters=tuple(written),
    )


def _use(facts: ModelFacts) -> Iterator[Block]:
    if facts.description:
        yield Paragraph(facts.description)
    card = facts.card
    lacking = "not declared (key card.intended_use in defs.yaml)"
    yield Bullets(
        (
            f"Intended use: {card.intended_use or lacking}",
            *(f"Not intended for: {one}" for one in card.not_intended_for),
            *([f"Contact: {card.contact}"] if card.contact else []),
        )
    )


def _prediction(evaluation: Evaluation, facts: ModelFacts) -> Iterator[Block]:
    classes = [one.name for one in evaluation.classes]
    of = f" ({name_some(classes, _NAMED)})" if classes else ""
    yield Paragraph(
        f"For each row of {facts.table} the model returns {facts_of(evaluation.objective).answer}{of}. "
        f"The label is the column {facts.label}; the objective is {evaluation.objective}."
    )
    rows = tuple((kind, str(len(names)), ", ".join(names)) for kind, names in facts.inputs.items())
    yield Grid(("input", "columns", "names"), rows, numbers=frozenset({1}))


def _data(report: Report) -> Iterator[Block]:
    rows = tuple(
        (
            one.split,
            f"{one.first} to {one.last}",
            count(one.rows),
            count(one.lost),
            one.known_by_in_words,
        )
        for one in report.splits
    )
    columns = ("split", "partitions", "rows", "left out", "label known by")
    yield Grid(columns, rows, numbers=frozenset({2, 3}))
    if by_weight := sentences.weighted(report):
        yield Paragraph(by_weight)


def _how_measured(evaluation: Evaluation) -> str:
    weighted_by = f" weighted by {evaluation.weight}" if evaluation.weight else ""
    return (
        f"{counted(evaluation.rows, 'holdout row')}{weighted_by}, the same for all models; "
        f"{evaluation.confidence:.0%} intervals over {evaluation.blocks} blocks by {evaluation.bootstrap_unit}"
    )


def _metrics(evaluation: Evaluation) -> Iterator[Block]:
    measured = evaluation.overall.metrics
    rows = tuple(
        (
            f"{metric.label} {'↑' if metric.higher_is_better else '↓'}",
            *(sentences.with_interval(values[metric.name]) for values in measured.values()),
        )
        for metric in evaluation.measured
    )
    columns = ("metric", *(f"this model ({role})" if role == "challenger" else role for role in measured))
    yield Grid(columns, rows)
    others = [name for role, name in evaluation.names.items() if role in measured and role != "challenger"]
    yield Paragraph(f"Compared with: {'; '.join(others)}. ↑ higher is better, ↓ lower is better.")
    if plain := sentences.plain_findings(evaluation):
        yield Bullets(tuple(plain))
    drawn = drawn_later(evaluation)
    yield from (Drawing(name, drawn[name], caption(name, evaluation)) for name in _DRAWN if name in drawn)


def _gates(evaluation: Evaluation) -> Grid:
    rows = tuple(
        (
            rule.rule,
            rule.slice or "all rows",
            f"{rule.metric} {rule.asks}",
            _measured(rule),
            rule.status.replace("_", " "),
        )
        for rule in evaluation.decision.rules
    )
    return Grid(("gate", "slice", "asks", "measured", "result"), rows)


def _measured(rule: RuleResult) -> str:
    if rule.measured is None:
        return ""
    if rule.compared_with:
        return sentences.gain(rule.measured, rule.relative)
    return sentences.with_interval(rule.measured)


def _slices(evaluation: Evaluation) -> Iterator[Chapter]:
    metric = evaluation.measured[0]
    measured = [part for part in evaluation.slices if part.metrics]
    if not measured:
        return
    against = sentences.comparator_of(evaluation)
    ranked = sorted(measured, key=lambda part: _badness(part, metric))[:WEAKEST]
    rows = tuple(
        (
            _named(part),
            count(part.rows),
            sentences.with_interval(part.metrics["challenger"][metric.name]),
            sentences.gain(part.improvements[against][metric.name]),
        )
        for part in ranked
    )
    note = f"{len(ranked)} of {len(measured)} measured slices, worst {metric.label} first"
    columns = ("slice", "rows", metric.label, f"improvement on {against}")
    yield Chapter("Weakest slices", (Grid(columns, rows, numbers=frozenset({1})),), note)


def _badness(part: Part, metric: MetricFacts) -> float:
    value = part.metrics["challenger"][metric.name].value
    if value is None:
        return float("inf")
    return value if metric.higher_is_better else -value


def _limits(report: Report, release: Release | None) -> Iterator[str]:
    """Yield declared limits, then those that the evaluation measured."""
    evaluation = report.evaluation
    yield from report.model.card.limits
    if release is not None:
        yield from release.objections
    if warning := sentences.no_error(evaluation):
        yield warning
    if evaluation.decision.status != "blessed":
        yield from evaluation.decision.reasons
    if report.splits:
        holdout = report.splits[-1]
        yield f"Measured on {holdout.first} to {holdout.last}. Nothing here says how it does on later rows."
    if small := [part for part in evaluation.slices if not part.metrics]:
        names = name_some([f"{_named(part)} ({part.rows})" for part in small], _NAMED)
        yield f"Slices of fewer than {evaluation.min_slice_rows} rows are not measured: {names}."
    if worse := _worse_slices(evaluation):
        metric = evaluation.measured[0].label
        yield f"{metric} is worse than that of the {sentences.comparator_of(evaluation)} on {name_some(worse, _NAMED)}."
    yield from sentences.left_out(report)
    if report.recoveries:
        yield f"The training was {sentences.survived(report)}."


def _worse_slices(evaluation: Evaluation) -> list[str]:
    """Return the slices on which the model is worse than the comparator, corrected for the number of slices."""
    metric, comparator = evaluation.measured[0], sentences.comparator_of(evaluation)
    measured = [part for part in evaluation.slices if part.metrics]
    found: list[str] = []
    for part in measured:
        single = part.improvements[comparator][metric.name]
        joint = among(single, len(measured), part.blocks, evaluation.confidence)
        if joint.high is not None and joint.high < 0:
            found.append(_named(part))
    return found


def _named(part: Part) -> str:
    return f"{part.slice}={part.value}"


def _training(report: Report) -> Iterator[Block]:
    facts = report.model
    if facts.elsewhere:
        yield Paragraph(f"{facts.elsewhere}.")
        return
    weights = f"the weights of {facts.begins_with}" if facts.begins_with else "random weights"
    yield Paragraph(f"{facts.made_by}, from {weights}, seed {facts.seed}.")
    chosen = f"chosen by the study {facts.study[:12]}" if facts.study else "declared"
    yield Bullets(
        (
            f"Hyperparameters ({chosen}): {_values(facts.hyperparameters)}",
            *([f"Origin of these values: {facts.values_from}"] if facts.values_from else []),
            f"Training settings: {_values(facts.training)}",
            *([f"Days that the model has seen: {facts.seen}"] if facts.seen else []),
        )
    )


def _values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dotted(values)) or "none"

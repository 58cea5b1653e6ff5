"""Gate results and the gate decision, from measurements. Rules are declared in `spec.py`, worded in `sentences.py`.

A rule sees only estimates (a value and its redraws) of predictions on this holdout. It cannot use a metric that was
measured elsewhere or stored with the champion.

    a rule failed                                 → rejected
    no rule failed, one is undecided              → undecided
    the champion has seen rows of this holdout    → undecided, unless rejected
    the champion cannot score this holdout        → as `on_incomparable` says, by default undecided
    no rule applied                               → undecided
    else                                          → blessed
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from ml_assets.model.evaluation.comparison import sentences
from ml_assets.model.evaluation.comparison.holdout_rows import SliceKey
from ml_assets.model.evaluation.evaluation_document import (
    AS_WITH_A_LEAK,
    DecisionStatus,
    GateDecision,
    Role,
    RuleResult,
    RuleStatus,
)
from ml_assets.model.evaluation.metrics.bootstrap import Estimate, Interval, interval, joint_intervals, paired
from ml_assets.model.evaluation.metrics.metrics import MetricFacts, metrics_of
from ml_assets.model.evaluation.spec import EVERY, Comparator, EvaluationSpec, Gate


@dataclass(frozen=True)
class Champion:
    """Facts that a gate may know about the model in production. Stored metrics are deliberately not among them."""

    name: str
    """Name in reports, for example `version 7`."""
    seen: tuple[str, ...] = ()
    """Partition keys of this holdout on which it was trained or selected."""
    cannot_score: str = ""
    """Reason why it has no predictions for this holdout, such as a dropped column that it reads."""
    weight: str = ""
    """Column that weighted the rows of its training; empty if each row counted once."""

    @classmethod
    def compare(
        cls, name: str, *, trained_on: Iterable[str], holdout: Iterable[str], weight: str = ""
    ) -> Self:
        """Compare the partition keys of its training and validation rows with the keys of this holdout."""
        return cls(name, tuple(sorted(set(trained_on) & set(holdout))), weight=weight)


@dataclass(frozen=True)
class Cell:
    """Estimates on the whole holdout (`slice` None) or on one slice."""

    slice: SliceKey | None
    rows: int
    blocks: int
    estimates: Mapping[tuple[Role, str], Estimate]
    """Estimates by role and metric; empty if the slice is too small to measure."""
    has_one_label: bool = False
    """True if all rows have the same label. Such rows cannot separate a good model from a bad one."""

    def improvement(self, metric: MetricFacts, on: Comparator, *, relative: bool = False) -> Estimate:
        """Return the challenger's improvement on another model; positive if it is better."""
        of_challenger, of_other = (self.estimates[role, metric.name] for role in ("challenger", on))
        return paired(of_challenger, of_other, higher_is_better=metric.higher_is_better, relative=relative)


def decide(
    spec: EvaluationSpec,
    cells: Sequence[Cell],
    champion: Champion | None,
    serving: Mapping[str, float] = MappingProxyType({}),
    guess: str = "",
) -> GateDecision:
    """Check every gate of `spec` on `cells`, and its gates on latency and size on `serving`, by metric.

    `guess` says what the naive baseline predicts.
    """
    gates = list(spec.gates)
    if champion is None:
        gates += _against_baseline(spec, "first model")
    elif champion.cannot_score and spec.on_incomparable == "ignore":
        gates += _against_baseline(spec, "the champion cannot score these rows")
    rules = [
        result
        for gate in gates
        for result in (
            [_check_serving(gate, spec, serving[gate.metric])]
            if gate.is_about_serving
            else _check_gate(gate, spec, cells, champion, guess)
        )
    ]
    decided = _conclude(rules, champion, spec)
    if not _is_flawless(spec, cells):
        return decided
    return decided.model_copy(update={"summary": f"{decided.summary} {AS_WITH_A_LEAK}", "no_error": True})


_PRINTED_AS_ONE = 1 - 5e-5
"""Least score that a report prints as 1.0000."""
_OF_FIRST_PLACES = ("mrr", "recall")
"""Scores of lists that are 1 for an order with errors behind the first places."""


def _is_flawless(spec: EvaluationSpec, cells: Sequence[Cell]) -> bool:
    """Return True if a score of the challenger is perfect on the whole holdout, as of a model that knows the label."""
    whole = next((cell for cell in cells if cell.slice is None), None)
    if whole is None or whole.has_one_label:
        return False
    scores = (
        one.name
        for one in metrics_of(spec.objective)
        if one.higher_is_better and one.highest == 1 and one.needs_skill and one.name not in _OF_FIRST_PLACES
    )
    measured = (whole.estimates.get(("challenger", name)) for name in scores)
    return any(one is not None and one.value >= _PRINTED_AS_ONE for one in measured)


def _against_baseline(spec: EvaluationSpec, why: str) -> list[Gate]:
    """Return a gate against the baseline in place of the gate against the champion, which cannot be measured.

    Return none if the spec has no gate against the champion, or already has a gate against the baseline. Its metric is
    the first of those gates' metrics that a constant prediction cannot win.
    """
    asked = [gate for gate in spec.gates if gate.better_than == "champion"]
    if not asked or any(gate.better_than == "baseline" for gate in spec.gates):
        return []
    skilled = (gate.metric for gate in asked if spec.metric(gate).needs_skill)
    metric = next(skilled, metrics_of(spec.objective)[0].name)
    return [Gate(name=f"{why}: better than the naive baseline", metric=metric, better_than="baseline")]


def _check_gate(
    gate: Gate, spec: EvaluationSpec, cells: Sequence[Cell], champion: Champion | None, guess: str
) -> list[RuleResult]:
    if gate.better_than == "champion" and champion is None:
        reason = "not applicable: this is the first model, so there is no champion to compare with"
        return [_result(gate, None, "not_applicable", reason)]
    if gate.better_than == "champion" and champion is not None and champion.cannot_score:
        status = _INCOMPARABLE[spec.on_incomparable]
        reason = _cannot_score(champion)
        if status == "not_applicable":
            reason = f"not applicable: {reason}, and `on_incomparable: ignore` skips the comparison"
        return [_result(gate, None, status, reason, would_pass=_COMPARABLE)]
    wanted = [cell for cell in cells if _matches(gate, cell)]
    if not wanted:
        name, value = gate.sliced or ("", "")
        reason = f"this holdout has no row with {name}={value}"
        would = f"rows with {name}={value}, or a slice that exists"
        return [_result(gate, None, "undecided", reason, would_pass=would)]
    fewest = gate.min_rows or spec.min_slice_rows
    results: dict[SliceKey | None, RuleResult] = {}
    large: list[Cell] = []
    for cell in wanted:
        if cell.slice is not None and cell.rows < fewest:
            reason = f"not applicable: {cell.rows} rows, fewer than the {fewest} that a slice needs"
            results[cell.slice] = _result(gate, cell, "not_applicable", reason)
        else:
            large.append(cell)
    metric = spec.metric(gate)
    if gate.better_than is None:
        checked = [_check_value(gate, metric, cell, spec) for cell in large]
    elif gate.better_than == "champion" and champion is not None and champion.seen:
        checked = [_result(gate, cell, "undecided", _seen(champion), would_pass=_UNSEEN) for cell in large]
    else:
        checked = _check_change(gate, gate.better_than, metric, large, spec, guess)
    results |= {cell.slice: result for cell, result in zip(large, checked, strict=True)}
    return [results[cell.slice] for cell in wanted]


def _matches(gate: Gate, cell: Cell) -> bool:
    if gate.sliced is None:
        return cell.slice is None
    name, value = gate.sliced
    return cell.slice is not None and cell.slice.name == name and value in (EVERY, cell.slice.value)


def _check_serving(gate: Gate, spec: EvaluationSpec, value: float) -> RuleResult:
    measured, limit = Interval(value), _limit(gate)
    explanation, would = sentences.value_rule(spec.metric(gate), measured, limit, least=False, where="")
    status: RuleStatus = "failed" if value > limit else "passed"
    return _result(gate, None, status, explanation, measured=measured, would_pass=would)


def _check_value(gate: Gate, metric: MetricFacts, cell: Cell, spec: EvaluationSpec) -> RuleResult:
    least = gate.at_least is not None
    limit = _limit(gate)
    one = cell.estimates["challenger", metric.name]
    measured = interval(one, spec.confidence, lowest=metric.lowest, highest=metric.highest)
    if math.isinf(one.value) and (one.value > 0) != least:
        return _infinitely_worse(gate, metric, cell, measured)
    explanation, would = sentences.value_rule(metric, measured, limit, least=least, where=_where(cell))
    if measured.value is None:
        return _undefined(gate, cell, explanation, measured, would)
    if measured.value < limit if least else measured.value > limit:
        return _result(gate, cell, "failed", explanation, measured=measured, would_pass=would)
    if flaw := _flaw(cell, spec):
        return _undefined(gate, cell, f"{explanation}, and {flaw}", measured, _TELLING)
    return _result(gate, cell, "passed", explanation, measured=measured)


def _check_change(
    gate: Gate,
    comparator: Comparator,
    metric: MetricFacts,
    cells: Sequence[Cell],
    spec: EvaluationSpec,
    guess: str,
) -> list[RuleResult]:
    if not cells:
        return []
    relative = gate.required_margin.relative
    against = sentences.THE[comparator] + (f" ({guess})" if guess and comparator == "baseline" else "")
    improvements = [cell.improvement(metric, comparator, relative=relative) for cell in cells]
    # The redraws of a slice with too few blocks are worthless, and must not set the width for other slices.
    enough = [cell.blocks >= spec.min_blocks for cell in cells]
    kept = [one for one, fine in zip(improvements, enough, strict=True) if fine]
    found = iter(joint_intervals(kept, gate.confidence or spec.confidence))
    intervals = [
        next(found) if fine else Interval(one.value if math.isfinite(one.value) else None)
        for one, fine in zip(improvements, enough, strict=True)
    ]
    return [
        _infinitely_worse(gate, metric, cell, measured)
        if one.value == -math.inf
        else _check_improvement(gate, against, metric, cell, measured, spec, len(kept))
        for cell, one, measured in zip(cells, improvements, intervals, strict=True)
    ]


def _infinitely_worse(gate: Gate, metric: MetricFacts, cell: Cell, measured: Interval) -> RuleResult:
    explanation, would = sentences.infinite(metric, sentences.asks(gate), where=_where(cell))
    return _result(gate, cell, "failed", explanation, measured=measured, would_pass=would)


def _check_improvement(
    gate: Gate,
    against: str,
    metric: MetricFacts,
    cell: Cell,
    measured: Interval,
    spec: EvaluationSpec,
    joint: int,
) -> RuleResult:
    where, margin = _where(cell), gate.required_margin
    if measured.low is None or measured.high is None:
        reason = f"the improvement of {metric.label}{where} has no interval: "
        reason += _flaw(cell, spec) or "the metric is not defined on these rows, or on too many redraws"
        return _undefined(gate, cell, reason, measured, _TELLING)
    explanation, would = sentences.change_rule(
        metric, against, measured, margin, cell.blocks, where=where, joint=joint
    )
    if measured.high < margin.amount:
        return _result(gate, cell, "failed", explanation, measured=measured, would_pass=would)
    if flaw := _flaw(cell, spec):
        return _undefined(gate, cell, f"{explanation}, and {flaw}", measured, _TELLING)
    if measured.low > margin.amount:
        return _result(gate, cell, "passed", explanation, measured=measured)
    return _undecided(gate, cell, explanation, measured, would)


_TELLING = "a longer holdout, or a larger slice"


def _flaw(cell: Cell, spec: EvaluationSpec) -> str:
    """Return the reason why no measurement on these rows can let a rule pass; empty if a rule can pass."""
    if cell.blocks < spec.min_blocks:
        return f"there are {cell.blocks} blocks, and at least {spec.min_blocks} are needed"
    return "all rows have the same label" if cell.has_one_label else ""


def _undefined(gate: Gate, cell: Cell, explanation: str, measured: Interval, would_pass: str) -> RuleResult:
    if gate.on_undefined == "pass":
        said = f"{explanation}; these rows cannot decide, and `on_undefined: pass` lets the rule pass"
        return _result(gate, cell, "passed", said, measured=measured)
    return _result(gate, cell, "undecided", explanation, measured=measured, would_pass=would_pass)


def _undecided(gate: Gate, cell: Cell, explanation: str, measured: Interval, would_pass: str) -> RuleResult:
    if gate.on_undecided == "pass":
        said = f"{explanation}; no harm is shown, and `on_undecided: pass` lets the rule pass"
        return _result(gate, cell, "passed", said, measured=measured)
    return _result(gate, cell, "undecided", explanation, measured=measured, would_pass=would_pass)


def _result(
    gate: Gate,
    cell: Cell | None,
    status: RuleStatus,
    explanation: str,
    *,
    measured: Interval | None = None,
    would_pass: str | None = None,
) -> RuleResult:
    named = gate.sliced if cell is None else None
    return RuleResult(
        rule=gate.name,
        metric=gate.metric,
        slice=f"{named[0]}={named[1]}" if named else str(cell.slice) if cell and cell.slice else None,
        compared_with=gate.better_than,
        status=status,
        asks=sentences.asks(gate),
        rows=cell.rows if cell else None,
        measured=measured,
        limit=_limit(gate),
        relative=gate.required_margin.relative,
        explanation=explanation,
        would_pass=would_pass if status in ("failed", "undecided") else None,
    )


def _limit(gate: Gate) -> float:
    given = (one for one in (gate.at_least, gate.at_most) if one is not None)
    return next(given, gate.required_margin.amount)


def _where(cell: Cell) -> str:
    return f" on {cell.slice}" if cell.slice else ""


_INCOMPARABLE: dict[str, RuleStatus] = {
    "undecided": "undecided", "reject": "failed", "ignore": "not_applicable"
}  # fmt: skip
_COMPARABLE = (
    "a champion that can score these rows: `ml-assets demote` takes this champion out of production, and "
    "`on_incomparable: ignore` in defs.yaml decides without it"
)


def _cannot_score(champion: Champion) -> str:
    return f"the champion ({champion.name}) cannot score these rows: {champion.cannot_score}"


_UNSEEN = "a champion that has seen none of this holdout, or a later holdout"


def _seen(champion: Champion) -> str:
    first, last = champion.seen[0], champion.seen[-1]
    span = first if first == last else f"{first} … {last}"
    return (
        f"the champion ({champion.name}) was trained or selected on {len(champion.seen)} of this holdout's "
        f"partitions ({span}), so its score here is too good and the comparison is not fair"
    )


def _conclude(rules: Sequence[RuleResult], champion: Champion | None, spec: EvaluationSpec) -> GateDecision:
    passed, failed, undecided = (
        [rule for rule in rules if rule.status == status] for status in ("passed", "failed", "undecided")
    )
    about, said, harm = _doubt(champion, spec)
    decided = len(passed) + len(failed) + len(undecided)
    status: DecisionStatus
    if failed or harm == "failed":
        # Do not repeat a sentence about the champion for each rule that compares with it.
        others = [one for one in failed if one.explanation not in about]
        status, reasons = "rejected", [*(about if harm == "failed" else []), *_sentences(others)]
        summary = f"Rejected: {len(failed)} of {decided} rules failed."
        if harm == "failed" and not others:
            summary = f"Rejected: {said}."
    elif undecided or harm == "undecided":
        doubts = [one for one in undecided if one.explanation not in about]
        status, reasons = "undecided", [*about, *_sentences(doubts)]
        summary = f"Undecided: nothing failed, but {len(reasons)} of {decided} rules cannot be decided."
        if about:
            summary = f"Undecided: {said}."
    elif not passed:
        status, reasons = "undecided", ["no rule applied to this model", *_sentences(rules)]
        summary = "Undecided: no rule applied."
    else:
        status, reasons = "blessed", _condensed(passed)
        summary = (
            f"Blessed: {'all ' if decided > 1 else ''}{decided} rule{'s' if decided > 1 else ''} passed."
        )
    return GateDecision(status=status, summary=summary, reasons=tuple(reasons), rules=tuple(rules))


def _doubt(champion: Champion | None, spec: EvaluationSpec) -> tuple[list[str], str, RuleStatus]:
    """Return the doubts about a comparison with the champion: sentences, a short form, the effect on the decision."""
    if champion is not None and champion.cannot_score:
        if spec.on_incomparable == "ignore":
            return [], "", "not_applicable"
        harm = _INCOMPARABLE[spec.on_incomparable]
        return [_cannot_score(champion)], "the champion cannot score these rows", harm
    if champion is not None and champion.seen:
        return [_seen(champion)], "the champion has seen rows of this holdout", "undecided"
    return [], "", "not_applicable"


def _condensed(passed: Sequence[RuleResult]) -> list[str]:
    """Return one sentence per rule. For a rule that passed on many slices, it is about the slice nearest to failing."""
    sentences: list[str] = []
    for name in dict.fromkeys(rule.rule for rule in passed):
        alike = [rule for rule in passed if rule.rule == name]
        tight = min(alike, key=distance_to_limit)
        lead = f"passed on all {len(alike)} slices checked; closest to the limit: " if len(alike) > 1 else ""
        sentences.append(f"“{name}”: {lead}{tight.explanation}")
    return sentences


def distance_to_limit(rule: RuleResult) -> float:
    """Return the distance from limit to measurement, infinite without a measurement; the smallest is the closest call.

    With an interval it is the interval's lower end minus the limit, otherwise the absolute difference.
    """
    measured = rule.measured.value if rule.measured else None
    if measured is None:
        return math.inf
    if rule.compared_with is not None and rule.measured is not None and rule.measured.low is not None:
        return rule.measured.low - rule.limit
    return abs(measured - rule.limit)


def _sentences(rules: Iterable[RuleResult]) -> list[str]:
    return [f"“{rule.rule}”: {rule.explanation}" for rule in rules]

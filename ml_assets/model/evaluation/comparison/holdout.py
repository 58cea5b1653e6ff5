"""Evaluation of predictions on a holdout: the function that the pipeline calls.

The caller reads the holdout, scores the models and stores the result.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import numpy as np
import polars as pl

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.comparison.curves import class_figures, curves
from ml_assets.model.evaluation.comparison.declared_metrics import Grouping, Groups, OwnMetric, groupings_of
from ml_assets.model.evaluation.comparison.gates import Cell, Champion, decide
from ml_assets.model.evaluation.comparison.holdout_rows import (
    Rows,
    SliceKey,
    bootstrap_blocks,
    calibration_gaps,
    calibration_of_slices,
    in_range,
    labels_of,
    prediction_fault,
    redraws,
    slice_rows,
    whole_lists,
    with_values_of,
)
from ml_assets.model.evaluation.evaluation_document import (
    Evaluation,
    OwnMetricFacts,
    Part,
    Role,
    ServingCost,
    TextFigures,
)
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockForm,
    BlockIds,
    Estimate,
    Matrix,
    block_form,
    estimate,
    interval,
)
from ml_assets.model.evaluation.metrics.list_metrics import ListFigures, Lists, in_measured_lists
from ml_assets.model.evaluation.metrics.metrics import Vector, metrics_of
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError, mean, weights_of
from ml_assets.model.evaluation.spec import Comparator, EvaluationSpec, Gate

ROLES: tuple[Role, ...] = ("challenger", "champion", "baseline", "reference")
_COMPARATORS: tuple[Comparator, ...] = ("champion", "baseline", "reference")


def evaluate(
    holdout: pl.DataFrame,
    predictions: Mapping[str, Vector],
    spec: EvaluationSpec,
    *,
    champion: Champion | None = None,
    own_metrics: Sequence[OwnMetric] = (),
    label: str = "label",
    weight: str | None = None,
    classes: Sequence[str] = (),
    baseline_name: str = "naive baseline",
    guess: str = "",
    reference_name: str = "regression on the same columns",
    serving: ServingCost | None = None,
    texts: TextFigures | None = None,
    transitions: Mapping[str, Sequence[Gate]] = MappingProxyType({}),
) -> Evaluation:
    """Measure a challenger on one holdout, compare it and decide its gates.

    `holdout` has one row per prediction, with `label` (binary: 0/1 or bool; count: whole numbers from 0; multiclass:
    the number of one of `classes`, from 0; ranking: numbers from 0; next_token: numbers of predicted tokens, from 1;
    else numbers; no nulls), the block column, the slice columns and the `group` of `spec`. `weight` is the column with
    the weights of the rows, above 0; without it, each row counts once.
    `predictions` are float64 `[N]` in the rows' order (binary: probabilities; count: expected counts; multiclass:
    `[N, K]`, a probability for each of `classes`; next_token: `[N, 2]`, nats per token and share predicted right) for
    `challenger`, `baseline` and `reference`, and for `champion` exactly if `champion` is given and can score.
    `own_metrics` are those that `spec.metrics` declares. Gates on latency and size need `serving`. `texts` are the
    losses of single tokens, if rows are texts. `transitions` are further gates by the transition that they guard; their
    names differ from those of `spec`. `guess` says in gates what the baseline predicts.

    Raises `EvaluationInputError`. A poor model is not an error: see `Evaluation.decision`.
    """
    spec = with_values_of(spec.also_measuring(*transitions.values()), holdout.schema)
    if serving is None and (limits := [gate.name for gate in spec.gates if gate.is_about_serving]):
        raise EvaluationInputError(
            f"gate {limits[0]!r} limits latency or size: pass `serving`, the bundle's cost"
        )
    y = labels_of(holdout, label, spec, classes)
    scores = _predictions(predictions, (len(y), *_width(spec.objective, classes)), spec, champion)
    scored = Scored.of(holdout, y, scores, spec, own_metrics, weight)
    w, blocks, counts, lists, names = scored.w, scored.blocks, scored.counts, scored.lists, scored.names
    slices = all_rows_and_slices(holdout, spec)
    cells = [measured(key, rows, scored, spec) for key, rows in slices.items()]
    gaps = calibration_gaps(spec.objective, y, scores["challenger"])
    calibration = calibration_of_slices(gaps, w, list(slices.values())[1:], blocks, counts, spec)
    parts = [
        _part(cell, rows, scored, spec).model_copy(update={"calibration": gap})
        for cell, rows, gap in zip(cells, slices.values(), calibration, strict=True)
    ]
    called: dict[Role, str] = {
        "challenger": "challenger",
        "baseline": baseline_name,
        "reference": reference_name,
    }
    if champion is not None and not champion.cannot_score:
        called["champion"] = f"champion ({champion.name})"
    cost = {} if serving is None else serving.values()
    later = {gate.name for gates in transitions.values() for gate in gates}
    return Evaluation(
        objective=spec.objective,
        rows=len(y),
        weight=weight or "",
        bootstrap_unit=spec.bootstrap_unit,
        blocks=len(names),
        first_block=names[0],
        last_block=names[-1],
        draws=spec.draws,
        confidence=spec.confidence,
        min_slice_rows=spec.fewest_slice_rows,
        names={role: called[role] for role in ROLES if role in called},
        champion_seen=champion.seen if champion is not None else (),
        champion_cannot_score=champion.cannot_score if champion is not None else "",
        champion_weight=champion.weight if champion is not None else "",
        overall=parts[0],
        slices=tuple(parts[1:]),
        classes=class_figures(classes, y, scores["challenger"], w) if classes else (),
        lists=None if lists is None else ListFigures.of(y, lists),
        curves=curves(spec.objective, y, scores, w, blocks, counts, spec.confidence, lists),
        decision=decide(
            spec.only_gates({gate.name for gate in spec.gates} - later), cells, champion, cost, guess
        ),
        transitions={
            to: decide(spec.only_gates({gate.name for gate in gates}), cells, champion, cost, guess)
            for to, gates in transitions.items()
        },
        own_metrics=tuple(
            OwnMetricFacts(declared=one.declared, code_version=one.code_version) for one in own_metrics
        ),
        bias=tuple(
            one.figures(y, scores["challenger"], w, blocks, counts, spec.confidence) for one in scored.bias
        ),
        serving=serving,
        texts=texts,
    )


def _width(objective: ObjectiveName, classes: Sequence[str]) -> tuple[int, ...]:
    """Return the shape of a row's prediction: empty for one number."""
    names = classes or facts_of(objective).columns
    return (len(names),) if names else ()


def _predictions(
    given: Mapping[str, Vector], shape: tuple[int, ...], spec: EvaluationSpec, champion: Champion | None
) -> dict[Role, Vector]:
    scores_too = champion is not None and not champion.cannot_score
    wanted = {"challenger", "baseline", "reference"} | ({"champion"} if scores_too else set[str]())
    if set(given) != wanted:
        raise EvaluationInputError(
            f"predictions are for {', '.join(sorted(given))}; expected {', '.join(sorted(wanted))} "
            "(`champion` goes with `champion=Champion(…)`, both or neither)"
        )
    scores: dict[Role, Vector] = {}
    for role in ROLES:
        if role not in given:
            continue
        p = np.asarray(given[role], dtype=np.float64)
        if p.shape != shape:
            raise EvaluationInputError(f"predictions of the {role} have shape {p.shape}, expected {shape}")
        if fault := prediction_fault(p, spec.objective):
            raise EvaluationInputError(f"predictions of the {role} {fault}")
        scores[role] = in_range(p, spec.objective)
    return scores


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Everything to measure on."""

    y: Vector
    w: Vector
    """Weights of the rows, above 0."""
    scores: Mapping[Role, Vector]
    blocks: BlockIds
    names: Sequence[str]
    """Names of the blocks."""
    counts: Matrix
    """`[D, B]`: redraws of the blocks."""
    own: Mapping[OwnMetric, Groups]
    """Own metrics, each with the groups of the rows."""
    bias: Sequence[Grouping]
    lists: Lists | None = None
    """List of each row; None if rows do not form lists."""

    @classmethod
    def of(
        cls,
        holdout: pl.DataFrame,
        y: Vector,
        scores: Mapping[Role, Vector],
        spec: EvaluationSpec,
        own: Iterable[OwnMetric],
        weight: str | None,
    ) -> Self:
        """Take weights, blocks, lists and groups from the rows of `holdout`. Raises `EvaluationInputError`."""
        blocks, names = bootstrap_blocks(holdout, spec)
        return cls(
            y=y,
            w=weights_of(holdout, weight),
            scores=scores,
            blocks=blocks,
            names=names,
            counts=redraws(blocks, spec),
            own={metric: metric.groups_of(holdout) for metric in own},
            bias=groupings_of(holdout, spec),
            lists=whole_lists(holdout, spec),
        )

    def count_blocks(self, rows: Rows) -> int:
        """Return the number of blocks among some of the rows. Rows of a list without a value do not count."""
        if self.lists is not None:
            rows = rows[in_measured_lists(self.y[rows], self.lists[rows])]
        return len(np.unique(self.blocks[rows]))

    def forms(
        self, rows: Rows, p: Vector, objective: ObjectiveName, present: int
    ) -> Iterator[tuple[str, BlockForm, int]]:
        """Yield each metric of predictions `p` on some of the rows, and the number of blocks that it rests on.

        `present` is the number of blocks among the rows, which `count_blocks` returns.

        Raises `EvaluationInputError` if a function of the project ignores the weights of these rows.
        """
        y, p, w, blocks = self.y[rows], p[rows], self.w[rows], self.blocks[rows]
        lists = None if self.lists is None else self.lists[rows]
        for metric in metrics_of(objective):
            yield (
                metric.name,
                block_form(metric, y, p, blocks, self.counts.shape[1], w=w, lists=lists),
                present,
            )
        for own, groups in self.own.items():
            own.require_weights(y, p, groups[rows], w, blocks, self.counts)
            yield own.facts.name, own.form(y, p, groups[rows], w, blocks), present
        for grouping in self.bias:
            yield from grouping.forms(rows, y, p, w, blocks, self.counts.shape[1])


def all_rows_and_slices(holdout: pl.DataFrame, spec: EvaluationSpec) -> dict[SliceKey | None, Rows]:
    """Return the numbers of all rows, under None, and of the rows of each slice."""
    return {None: np.arange(holdout.height), **slice_rows(holdout, spec.sliced_by)}


def measured(key: SliceKey | None, rows: Rows, scored: Scored, spec: EvaluationSpec) -> Cell:
    """Return the estimates of all models in `scored` on some rows; none for a slice with too few rows."""
    present = scored.count_blocks(rows)
    has_one_label = not facts_of(spec.objective).has_tokens and bool(np.ptp(scored.y[rows]) == 0)
    if key is not None and len(rows) < spec.fewest_slice_rows:
        return Cell(key, len(rows), present, {}, has_one_label)
    estimates: dict[tuple[Role, str], Estimate] = {
        (role, name): estimate(form, scored.counts, blocks)
        for role, p in scored.scores.items()
        for name, form, blocks in scored.forms(rows, p, spec.objective, present)
    }
    return Cell(key, len(rows), present, estimates, has_one_label)


def _part(cell: Cell, rows: Rows, scored: Scored, spec: EvaluationSpec) -> Part:
    metrics = spec.measured if cell.estimates else ()
    facts = facts_of(spec.objective)
    roles: list[Role] = [role for role in scored.scores if cell.estimates]
    w = scored.w[rows]
    return Part(
        slice=cell.slice.name if cell.slice else None,
        value=cell.slice.value if cell.slice else None,
        rows=cell.rows,
        blocks=cell.blocks,
        label_mean=None if facts.has_classes else mean(scored.y[rows], w),
        prediction_mean={role: mean(p[rows], w) for role, p in scored.scores.items()}
        if facts.estimates_label
        else {},
        metrics={
            role: {
                metric.name: interval(
                    cell.estimates[role, metric.name],
                    spec.confidence,
                    lowest=metric.lowest,
                    highest=metric.highest,
                )
                for metric in metrics
            }
            for role in roles
        },
        improvements={
            comparator: {
                metric.name: interval(cell.improvement(metric, comparator), spec.confidence)
                for metric in metrics
            }
            for comparator in _COMPARATORS
            if comparator in roles
        },
    )

"""Settings of an evaluation: the `evaluation` section of a pipeline's file, with its gates. Decides nothing."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from ml_assets.foundation.objective_facts import NAMES, ObjectiveName, facts_of
from ml_assets.foundation.sections import Section, Seed
from ml_assets.model.evaluation.metrics.metrics import (
    SERVING_METRICS,
    SERVING_NAMES,
    MetricFacts,
    find_metric,
    metrics_of,
)

Comparator = Literal["champion", "baseline", "reference"]
"""Model to compare a challenger with: the version in production, the naive model, or a regression on the same
columns (of texts: counts of three tokens in a row)."""
SliceValue = str | bool | int | float | date
EVERY = "*"
"""Slice value that stands for every value of the column."""


@dataclass(frozen=True)
class Margin:
    """Margin that an improvement has to clear, in the metric's unit, or as a share of the other model's value."""

    amount: float
    relative: bool = False


class Gate(Section):
    """One rule. Exactly one of `at_least`, `at_most` (value threshold) and `better_than` (change threshold).

    A value threshold is compared with the value measured on this holdout. A change threshold is compared with the
    paired block-bootstrap interval of the improvement: passed when the whole interval lies above the margin,
    failed when the whole interval lies below it, undecided in between.
    """

    name: str
    """Name in decisions and reports; unique within the pipeline."""
    metric: str
    """binary: auc, logloss, brier, ece. regression: rmse, mae, r2. quantile: pinball, coverage_error.
    count: poisson_deviance, mae, rmse. multiclass: logloss, accuracy, macro_auc, macro_f1. ranking: ndcg, mrr, recall.
    next_token: perplexity, bits_per_token, token_accuracy.
    Or the name of a function of `metrics`, or `demographic_parity_COLUMN` or `equal_opportunity_COLUMN` of an item of
    `bias`. With `at_most`, also latency and size of the bundle: row_p50_ms, row_p99_ms, batch_p50_ms, batch_p99_ms (of
    1,000 rows), bundle_mb."""
    at_least: float | None = None
    """Value that the metric must reach."""
    at_most: float | None = None
    """Value that the metric must not exceed."""
    better_than: Comparator | None = None
    """Model that the challenger must beat."""
    margin: float | str = 0.0
    """Margin of `better_than`: a number in the metric's unit, or "0.5%" of the other model's value. Positive
    always means better, also for losses. A negative margin allows a model that is worse by up to this amount."""
    slice: dict[str, SliceValue] | None = None
    """`{origin: JFK}` applies to one slice, `{origin: "*"}` to each, with intervals that hold jointly. The value is one
    of the column's type: text in quotes where YAML reads something else (`"NO"`, `"2013-11-01"`)."""
    min_rows: int | None = Field(default=None, ge=1)
    """Slices with fewer rows are left out; `min_slice_rows` of the section unless given."""
    confidence: float | None = Field(default=None, gt=0.5, lt=1)
    """Confidence of the interval; that of the section unless given."""
    on_undecided: Literal["undecided", "pass"] = "undecided"
    """`pass` turns a change threshold into a guard rail: it fails only if the interval shows harm."""
    on_undefined: Literal["undecided", "pass"] = "undecided"
    """Outcome if the rows cannot decide at all: fewer than `min_blocks` blocks, one label in all rows, a metric that
    is not defined, or a margin in percent of another model's value that is 0. A rule that fails there still fails."""

    @field_validator("margin")
    @classmethod
    def _margin_is_readable(cls, margin: float | str) -> float | str:
        _read(margin)
        return margin

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        given = [name for name in ("at_least", "at_most", "better_than") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"gate {self.name!r}: give one of at_least, at_most, better_than; found {found}")
        if self.better_than is None and (stray := self._given("margin", "confidence", "on_undecided")):
            raise ValueError(f"gate {self.name!r}: {', '.join(stray)} needs better_than")
        if self.slice is not None and len(self.slice) != 1:
            raise ValueError(f"gate {self.name!r}: slice is one `column: value`; found {self.slice}")
        if self.is_about_serving and (
            self.at_most is None or self._given("slice", "min_rows", "on_undefined")
        ):
            raise ValueError(
                f"gate {self.name!r}: {self.metric} takes `at_most`, and nothing about rows or slices"
            )
        return self

    def _given(self, *names: str) -> list[str]:
        """Return those of the keys that differ from their defaults. The ledger stores a gate with all its keys."""
        fields = type(self).model_fields
        return [name for name in sorted(names) if getattr(self, name) != fields[name].default]

    @property
    def is_about_serving(self) -> bool:
        """True if it limits latency or size of the bundle, which need no rows to compare on."""
        return self.metric in SERVING_NAMES

    @property
    def required_margin(self) -> Margin:
        """`margin` as a number with its unit."""
        return _read(self.margin)

    @property
    def sliced(self) -> tuple[str, SliceValue] | None:
        """Name and value of the slice, or None for the whole holdout."""
        return next(iter(self.slice.items())) if self.slice else None


def _read(margin: float | str) -> Margin:
    if isinstance(margin, str):
        number, percent, rest = margin.partition("%")
        try:
            if percent and not rest and math.isfinite(share := float(number) / 100):
                return Margin(share, relative=True)
        except ValueError:
            pass
        raise ValueError(f'margin must be a number or a share such as "0.5%", not {margin!r}')
    return Margin(margin)


class BiasSection(Section):
    """Comparison of a binary model's decisions between the groups of a column.

    It declares two metrics for gates, both between 0 (no difference) and 1: `demographic_parity_COLUMN` and
    `equal_opportunity_COLUMN`.
    """

    column: str
    """Column whose values are the groups, such as a region or an age bracket. The model need not read it."""
    threshold: float = Field(gt=0, lt=1)
    """Decision threshold: a row with this probability or a larger one is decided positive."""
    min_rows: int = Field(default=100, ge=2)
    """Groups with fewer rows are named, not compared; for equal opportunity, groups with fewer rows of label 1."""

    PARITY: ClassVar[str] = "demographic_parity"
    OPPORTUNITY: ClassVar[str] = "equal_opportunity"

    @property
    def parity(self) -> MetricFacts:
        """Demographic parity difference: largest minus smallest share of a group's rows that is decided positive."""
        return self._facts(self.PARITY, "rows")

    @property
    def opportunity(self) -> MetricFacts:
        """Equal opportunity difference: the same on rows of label 1, so between true positive rates."""
        return self._facts(self.OPPORTUNITY, "rows of label 1")

    @property
    def facts(self) -> tuple[MetricFacts, MetricFacts]:
        """Both metrics, parity first."""
        return self.parity, self.opportunity

    def _facts(self, kind: str, of: str) -> MetricFacts:
        return MetricFacts(
            name=f"{kind}_{self.column}",
            label=f"{kind.replace('_', ' ')} by {self.column}",
            higher_is_better=False,
            lowest=0,
            highest=1,
            needs_skill=False,
            defined_on=f"two groups of {self.column} with at least {self.min_rows} {of} in enough blocks",
        )


class CostSection(Section):
    """Costs of decisions by a binary model, all in one unit. Correct decisions without a benefit cost nothing."""

    false_positive: float = Field(gt=0)
    """Cost of a row of label 0 that is decided positive."""
    false_negative: float = Field(default=0.0, ge=0)
    """Cost of a row of label 1 that is decided negative."""
    benefit: float = Field(default=0.0, ge=0)
    """Gain from a row of label 1 that is decided positive. It counts as a negative cost."""
    unit: str = ""
    """Unit of the costs for the report, such as `EUR`."""

    @model_validator(mode="after")
    def _a_positive_decision_can_pay(self) -> Self:
        if self.false_negative + self.benefit == 0:
            raise ValueError(
                "costs needs `false_negative` or `benefit`: without both it is cheapest to decide no row positive"
            )
        return self

    @property
    def break_even(self) -> float:
        """Probability above which a positive decision is cheaper, if probabilities are right."""
        return self.false_positive / (self.false_positive + self.false_negative + self.benefit)


class ExplanationSection(Section):
    """Importance of each input column, and the mean prediction along the most important ones."""

    rows: int = Field(default=2_000, ge=100, le=50_000)
    """Holdout rows to predict again for each column and each drawn value, evenly spread over the holdout. At most
    100 if the model reads blobs; fewer above 300 columns, since each column is predicted for itself."""


VersionName = Annotated[str, Field(pattern=r"^\w+(/[1-9]\d*)?$")]
"""`model`: its version in production, or else its newest. `model/3`: its version 3."""


class SliceBy(Section):
    """Cut of the holdout into slices. In a list of slices a plain string means `{column: …}`."""

    column: str
    """A column of the holdout."""
    by: Literal["value", "month"] = "value"
    """`month` cuts a date or datetime column into calendar months (`2013-11`) and is then named `month`."""

    @property
    def name(self) -> str:
        """Name of the cut in gates and reports."""
        return self.column if self.by == "value" else self.by


class OwnMetricSection(Section):
    """Metric of the project's own code, beside those of the objective."""

    function: str
    """`package.module.function`: `(label, prediction, group, weight) -> float`, NaN where it is not defined. All are
    numpy arrays `[rows]`, float64 but for `group`; `prediction` is `[rows, classes]` if the label has classes, whose
    labels are numbers from 0. A row counts `weight` times: 0 and more. Only the step `evaluate` and `ml-assets diff`
    import it."""
    better: Literal["higher", "lower"]
    """Direction: `lower` for losses and costs."""
    group: str | None = None
    """Column whose values the function receives as `group`. Not given: 0 for all rows."""

    @property
    def facts(self) -> MetricFacts:
        """Name (that of the function) and direction."""
        name = self.function.rpartition(".")[2]
        return MetricFacts(
            name=name,
            label=name.replace("_", " "),
            higher_is_better=self.better == "higher",
            defined_on=f"rows on which {name} returns a number",
        )


class BaselineSpec(Section):
    """The naive model to beat: the mean label (or quantile, or share of each class) of a group of training rows. With
    `entity` also the entity's last known label, that of the same season, and means of its last labels; the strongest
    on the validation rows counts."""

    groups: tuple[str, ...] = ()
    """Columns, coarse to fine; each level shrinks towards the one before. Empty: one mean for all."""
    prior_rows: float | None = Field(default=None, gt=0)
    """Rows that the parent's mean counts as. A group with this number of rows is half its own mean and half its
    parent's. Not given: chosen on the validation rows, from 1 to 1000, and named in the report."""
    entity: tuple[str, ...] | None = None
    """Columns that together name what a row is about, such as a shop and a product: rows with equal ones are a series.
    `[]`: all rows are one series. Not given: only groups are compared."""
    predicted_at: str = "predicted_at"
    """Column with the moment of prediction (UTC), as the feature table declares it. With `entity`, a label counts for a
    row if it was known by then (`features.label_known_at`)."""

    @model_validator(mode="after")
    def _moments_are_of_entities(self) -> Self:
        # Not `model_fields_set`: a stored section has all its keys.
        if self.entity is None and self.predicted_at != type(self).model_fields["predicted_at"].default:
            raise ValueError(
                "predicted_at is for baseline.entity, which is not given: add entity, or remove it"
            )
        return self

    @property
    def history_columns(self) -> tuple[str, ...]:
        """Columns that tell which labels a row's entity had by then; empty without `entity`."""
        return () if self.entity is None else (*self.entity, self.predicted_at)

    def deciding(self) -> dict[str, Any]:
        """Return the settings as JSON values. Without `entity`, as evaluations recorded them before there was one."""
        return self.model_dump(
            mode="json", exclude={"entity", "predicted_at"} if self.entity is None else None
        )


_DECIDING = (
    "objective",
    "group",
    "bootstrap_unit",
    "min_slice_rows",
    "min_blocks",
    "draws",
    "confidence",
    "seed",
    "baseline",
    "on_incomparable",
    "gates",
)
"""Settings of which each changes the decision of a gate."""


class EvaluationSpec(Section):
    """The `evaluation` section of a pipeline."""

    objective: Annotated[ObjectiveName, AfterValidator(lambda name: facts_of(name).name)] = Field(
        json_schema_extra={
            "anyOf": [
                {"enum": list(NAMES)},
                {"pattern": r"^quantile 0\.\d+$"},
                {"pattern": r"^ranking( [1-9]\d*)?$"},
            ]
        }
    )
    """Kind of the label: `binary` is 0 or 1, `regression` any number (squared error), `quantile 0.9` any number, of
    which the value is predicted below which 90 % lie (`quantile 0.5`: the median, absolute error), `count` a whole
    number from 0 (Poisson), `multiclass` a text, a whole number or a boolean. The classes of `multiclass` are those of
    the training rows. `ranking` is a relevance from 0: rows of one `group` are a list, whose order is predicted;
    `ranking 5` measures its first 5 places, `ranking` its first 10. `next_token` predicts
    each token of a text (`features.blob`) from those before it; the label is their number."""
    group: str | None = None
    """Column that names the list of a row, for `objective: ranking` alone: a search, a session, a user's day. Rows of a
    list are in one partition."""
    bootstrap_unit: str = "date"
    """Column with the block of each row. The bootstrap redraws whole blocks. Rows of one block may depend on each
    other."""
    slices: tuple[str | SliceBy, ...] = ()
    """Parts of the holdout that get their own metrics."""
    min_slice_rows: int = Field(default=500, ge=1)
    """Smaller slices are listed, not measured."""
    min_blocks: int = Field(default=5, ge=2, le=250)
    """With fewer blocks a change threshold stays undecided. At most 250: of many blocks, several are drawn together."""
    draws: int = Field(default=1000, ge=100)
    """Resamples of the bootstrap."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the intervals."""
    seed: Seed = 0
    """Seed of the redraws: the same holdout and predictions give the same intervals."""
    baseline: BaselineSpec = BaselineSpec()
    """Groups of the naive baseline, and the entity whose last labels it may repeat."""
    on_incomparable: Literal["undecided", "reject", "ignore"] = "undecided"
    """The decision if the champion cannot score this holdout, because a column it reads was dropped or it has
    another objective: `undecided`, `reject`, or `ignore`, which decides as if no version were in production."""
    metrics: tuple[OwnMetricSection, ...] = ()
    """Metrics of the project's own code. Each is called once for each model, slice and redraw."""
    bias: tuple[BiasSection, ...] = ()
    """Columns between whose groups the decisions are compared (`binary` only). Each gives two metrics."""
    compared_with: tuple[VersionName, ...] = ()
    """Other registered models to score on the same rows, for the report: `model` is its version in production, or else
    its newest; `model/3` is version 3. No gate uses them."""
    costs: CostSection | None = None
    """Costs of wrong decisions (`binary` only), for a table of thresholds in the report."""
    explanations: ExplanationSection | None = None
    """Importance of each input column and partial dependence in the report; not given: none. `{}`: the defaults."""
    gates: tuple[Gate, ...]
    """At least one: a model without gates cannot be blessed."""

    @model_validator(mode="after")
    def _gates_fit(self) -> Self:
        # Not `min_length`: pydantic would also report it whenever the only gate has a typo.
        if not self.gates:
            raise ValueError("gates must name at least one rule: a model without gates cannot be blessed")
        names = [gate.name for gate in self.gates]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"gate names must be unique: {', '.join(sorted(twice))}")
        self._require_group()
        self._refuse_what_texts_have_not()
        sliced = [one.name for one in self.sliced_by]
        if twice := {name for name in sliced if sliced.count(name) > 1}:
            raise ValueError(f"slice names must be unique: {', '.join(sorted(twice))}")
        if self.bias and not facts_of(self.objective).is_zero_or_one:
            raise ValueError(f"bias compares decisions of objective binary; {self.objective} decides nothing")
        if self.costs is not None and not facts_of(self.objective).is_zero_or_one:
            raise ValueError(f"costs are of decisions by objective binary; {self.objective} decides nothing")
        compared = [one.column for one in self.bias]
        if twice := {name for name in compared if compared.count(name) > 1}:
            raise ValueError(f"bias must name each column once: {', '.join(sorted(twice))}")
        own = [one.facts.name for one in self.metrics]
        known = [*(one.name for one in self.measured), *SERVING_NAMES]
        if twice := {name for name in own if known.count(name) > 1}:
            raise ValueError(f"metric names must be unique: rename the function {', '.join(sorted(twice))}")
        for gate in self.gates:
            self.require_measured(gate)
        if not any(self.metric(gate).needs_skill for gate in self.gates):
            asked = ", ".join(sorted({gate.metric for gate in self.gates}))
            raise ValueError(
                f"gates ask only for {asked}, which a constant prediction can have: they would bless a model that "
                "predicts nothing of use. Add a gate on another metric, such as "
                f"`{{metric: {metrics_of(self.objective)[0].name}, better_than: baseline}}`"
            )
        return self

    def require_measured(self, gate: Gate) -> None:
        """Raise `ValueError` if no evaluation measures what `gate` asks for: its metric, or its slice."""
        self.metric(gate)
        cuts = [one.name for one in self.sliced_by]
        if gate.sliced is not None and gate.sliced[0] not in cuts:
            raise ValueError(
                f"gate {gate.name!r}: {gate.sliced[0]!r} is not among the slices ({', '.join(cuts) or 'none'})"
            )

    def _require_group(self) -> None:
        has_lists = facts_of(self.objective).has_lists
        if has_lists and self.group is None:
            raise ValueError(
                f"objective {self.objective!r} orders lists: name the column that is the same for all rows of a list "
                "and differs between lists in `group`"
            )
        if self.group is not None and not has_lists:
            raise ValueError(
                f"group is for objective 'ranking', and the objective is {self.objective!r}: remove it"
            )

    def _refuse_what_texts_have_not(self) -> None:
        if not facts_of(self.objective).has_tokens:
            return
        reasons = {
            "baseline": "its naive baseline is the frequency of each token in the training texts, without groups",
            "explanations": "a shuffled text is another text to predict, not the same one with less information",
        }
        for name, why in reasons.items():
            if name in self.model_fields_set and getattr(self, name) is not None:
                raise ValueError(f"{name} cannot be given for objective {self.objective!r}: {why}. Remove it")

    def deciding(self, *others: Gate) -> dict[str, Any]:
        """Return the settings by which gates decide, as JSON values. A change of one is a decision about releases.

        Of slices, bias and own metrics, only those that a gate or one of `others`, the gates of transitions, asks for:
        the rest changes the report, not the decision.
        """
        gates = (*self.gates, *others)
        asked = {gate.sliced[0] for gate in gates if gate.sliced is not None}
        metrics = {gate.metric for gate in gates}
        named = {
            "slices": [one for one in self.sliced_by if one.name in asked],
            "bias": [
                one for one in self.bias if any(metric.endswith(f"_{one.column}") for metric in metrics)
            ],
            "metrics": [one for one in self.metrics if one.facts.name in metrics],
        }
        decides = self.model_dump(mode="json", include=set(_DECIDING))
        decides["baseline"] = self.baseline.deciding()
        return decides | {
            name: [one.model_dump(mode="json") for one in some] for name, some in named.items() if some
        }

    @property
    def sliced_by(self) -> tuple[SliceBy, ...]:
        """`slices` with each plain string as a `SliceBy`."""
        return tuple(SliceBy(column=one) if isinstance(one, str) else one for one in self.slices)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a holdout needs in addition to the label: block, list, slices, baseline; each once."""
        return tuple(
            dict.fromkeys(
                (
                    self.bootstrap_unit,
                    *([self.group] if self.group is not None else []),
                    *(one.column for one in self.sliced_by),
                    *self.baseline.groups,
                    *self.baseline.history_columns,
                    *(one.group for one in self.metrics if one.group is not None),
                    *(one.column for one in self.bias),
                )
            )
        )

    @property
    def fewest_slice_rows(self) -> int:
        """Fewest rows with which a slice is measured, for the report or for a gate."""
        return min([self.min_slice_rows, *(gate.min_rows or self.min_slice_rows for gate in self.gates)])

    def also_measuring(self, *more: Iterable[Gate]) -> Self:
        """Return the section with further gates. Only for measuring: these gates decide something else."""
        return self.model_copy(update={"gates": (*self.gates, *chain(*more))})

    def only_gates(self, names: Collection[str]) -> Self:
        """Return the section with the gates of these names alone."""
        return self.model_copy(update={"gates": tuple(gate for gate in self.gates if gate.name in names)})

    def metric(self, gate: Gate) -> MetricFacts:
        """Return the metric that `gate` names. Raises `UnknownMetric`, which lists the valid names."""
        return find_metric(gate.metric, (*self.measured, *SERVING_METRICS), self.objective)

    @property
    def of_rows(self) -> tuple[MetricFacts, ...]:
        """Metrics that labels and predictions of any rows decide: those of the objective, then the own ones."""
        return (*metrics_of(self.objective), *(one.facts for one in self.metrics))

    @property
    def measured(self) -> tuple[MetricFacts, ...]:
        """All metrics, in the order of a report: those of rows, then those of bias."""
        return (*self.of_rows, *(metric for one in self.bias for metric in one.facts))

"""Documents of an evaluation: measurements, curves and decisions. Only data."""

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ml_assets.foundation.objective_facts import ObjectiveName
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.metrics.list_metrics import ListFigures
from ml_assets.model.evaluation.metrics.metrics import MetricFacts, metrics_of
from ml_assets.model.evaluation.spec import BiasSection, Comparator, OwnMetricSection


class Document(BaseModel):
    """Base class: immutable; unknown keys are errors when a document is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Latency(Document):
    """Wall time of calls with the same number of rows."""

    rows: int
    """Rows of each call."""
    calls: int
    p50_ms: float
    p99_ms: float
    """Nearly the slowest of fewer than 100 calls."""


class ServingCost(Document):
    """Latency and size of one bundle, measured by its own runtime."""

    row: Latency
    """Calls of `predict_row`."""
    batch: Latency
    """Calls of `predict`."""
    bundle_bytes: int
    """Bytes of all files that the digest of the bundle covers."""
    threads: int
    """Threads of onnxruntime in one call."""
    machine: str
    """Machine of the step that measured, such as `Linux x86_64, 8 cores`."""

    def values(self) -> dict[str, float]:
        """Return each of `SERVING_METRICS` by name."""
        return {
            "row_p50_ms": self.row.p50_ms,
            "row_p99_ms": self.row.p99_ms,
            "batch_p50_ms": self.batch.p50_ms,
            "batch_p99_ms": self.batch.p99_ms,
            "bundle_mb": self.bundle_bytes / 1e6,
        }


Role = Literal["challenger", "champion", "baseline", "reference"]
RuleStatus = Literal["passed", "failed", "undecided", "not_applicable"]
DecisionStatus = Literal["blessed", "rejected", "undecided"]


class RuleResult(Document):
    """Result of one gate on the whole holdout or on one slice."""

    rule: str
    metric: str
    slice: str | None
    """`carrier=AA`; None for the whole holdout."""
    compared_with: Comparator | None
    """None for a value threshold."""
    status: RuleStatus
    asks: str
    """`at least 0.7000`, `> 0.50 % better than champion`."""
    rows: int | None
    measured: Interval | None
    """Value threshold: the challenger's metric. Change threshold: its improvement, positive if better."""
    limit: float
    """Value threshold, or the margin that the improvement must exceed."""
    relative: bool
    """True if improvement and margin are shares of the comparator's value."""
    explanation: str
    would_pass: str | None
    """Condition under which the rule would pass; None if it passed or does not apply."""


AS_WITH_A_LEAK = "No error on the holdout, as with a leak: ml-assets leaktest TABLE."
"""End of the summary of a decision about a model without an error."""


class GateDecision(Document):
    """Blessed, rejected or undecided, with the reasons."""

    status: DecisionStatus
    summary: str
    """One sentence."""
    reasons: tuple[str, ...]
    """Sentences of the rules that decided: the failed rules, else the undecided rules, else those that passed."""
    rules: tuple[RuleResult, ...]
    no_error: bool = Field(default=False, exclude_if=lambda found: not found)
    """True if a score of the challenger is perfect on the whole holdout, as of a model that knows the label."""

    @model_validator(mode="before")
    @classmethod
    def _read_from_the_summary(cls, stored: Any) -> Any:
        """Add the field to a decision that was stored when only the summary said so."""
        if not isinstance(stored, dict) or "no_error" in stored:
            return stored  # pyright: ignore[reportUnknownVariableType]
        facts = cast("dict[str, Any]", stored)
        return facts | {"no_error": str(facts.get("summary", "")).endswith(AS_WITH_A_LEAK)}


class Part(Document):
    """Measurements on the whole holdout or on one slice."""

    slice: str | None
    """Name of the cut, such as `carrier`; None for the whole holdout."""
    value: str | None
    rows: int
    blocks: int
    label_mean: float | None
    """Observed rate (binary), mean label, or predicted tokens of a row (texts); None if the label has classes."""
    prediction_mean: dict[Role, float]
    """Mean prediction; empty if a prediction is no estimate of the label: classes, scores of a ranking,
    figures of a text."""
    metrics: dict[Role, dict[str, Interval]]
    """Empty if the slice is too small to measure."""
    improvements: dict[Comparator, dict[str, Interval]]
    """Improvement of the challenger over the comparator, for every metric; positive if the challenger is better."""
    calibration: Interval | None = None
    """Mean prediction minus mean label of the challenger; None for a slice that is too small. Intervals of slices hold
    jointly."""


class CalibrationBin(Document):
    """Rows of similar prediction."""

    rows: int
    share: float
    """Share of the holdout's rows, by weight."""
    predicted: float
    """Mean prediction."""
    observed: Interval
    """Mean label (of a quantile: the share of labels at or below the prediction) with its block-bootstrap interval."""


class Histogram(Document):
    """Shares of rows between edges, per group of rows."""

    edges: tuple[float, ...]
    rows: dict[str, int]
    """Group → rows."""
    shares: dict[str, tuple[float, ...]]
    """Group → share of its rows between two edges, by weight."""


class Density(Document):
    """Shares of (prediction, label) pairs on a grid."""

    prediction_edges: tuple[float, ...]
    label_edges: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]
    """`shares[i][j]`: share of the rows, by weight, with the prediction in bin i and the label in bin j."""


class Curves(Document):
    """Numbers behind the plots."""

    calibration: dict[Role, tuple[CalibrationBin, ...]] = Field(default={})
    roc: dict[Role, tuple[tuple[float, float], ...]] = Field(default={})
    """(false positive rate, true positive rate), at most 200 points; only for binary labels."""
    scores: Histogram | None = None
    """Scores of the challenger; None for texts. Binary: scores of `negative` and `positive` rows. Classes: the largest
    probability of rows that are `wrong` and `right`. Lists: those of rows that are `not relevant` and `relevant`.
    Numbers: `residual`, label − prediction; the outermost bars hold all rows beyond them."""
    density: Density | None = None
    """Only for numbers."""
    confusion: tuple[tuple[float, ...], ...] = ()
    """`confusion[i][j]`: share of the rows with label i, by weight, for which the challenger finds class j most likely.
    Only for classes."""
    depth: dict[Role, tuple[float, ...]] = Field(default_factory=dict[Role, tuple[float, ...]])
    """NDCG of the first place, of the first two, and so on. Only for lists."""


class TokenBin(Document):
    """Some of the predicted tokens of the holdout."""

    least: int
    """Least number by which they are grouped."""
    tokens: int
    bits: dict[Role, float]
    """Bits per token."""


class TextFigures(Document):
    """Losses of a holdout of texts, token by token."""

    tokens: int
    """Predicted tokens."""
    positions: tuple[TokenBin, ...]
    """By the number of tokens before them in their row: 1, 2, from 4, from 8 and so on."""
    frequencies: tuple[TokenBin, ...]
    """By their number in the training texts: 0, from 1, from 10, from 100 and so on."""


class ClassFigures(Document):
    """Figures of the challenger for one class against the rest, on the whole holdout."""

    name: str
    rows: int
    """Rows with this label."""
    share: float
    """Share of the rows with this label, by weight."""
    predicted: float
    """Mean probability."""
    precision: float | None
    """Share of the rows predicted as this class that have this label; None without such rows."""
    recall: float | None
    """Share of the rows with this label that are predicted as this class; None without such rows."""
    f1: float | None
    auc: float | None


class OwnMetricFacts(Document):
    """A metric of the project's own code."""

    declared: OwnMetricSection
    code_version: str
    """Version of the function and of the project modules that it reaches."""


class GroupShare(Document):
    """Share of a group's rows that the challenger decides positive."""

    rows: int
    share: Interval
    """No value without rows; no interval if the group does not count."""
    left_out: str
    """Reason why the group does not count in the difference, such as `1 row, fewer than 100`; empty if it does."""


class GroupFigures(Document):
    """Decisions of the challenger for one group."""

    name: str
    decided_positive: GroupShare
    """Among all rows: demographic parity compares these."""
    true_positives: GroupShare
    """Among the rows of label 1: equal opportunity compares these."""


class BiasFigures(Document):
    """Decisions of the challenger for each group of a column. Intervals of the groups hold jointly."""

    declared: BiasSection
    groups: tuple[GroupFigures, ...]


class Evaluation(Document):
    """All results of one challenger on one holdout."""

    objective: ObjectiveName
    rows: int
    weight: str
    """Column with the weights of the rows, which every mean and share uses; empty if each row counts once."""
    bootstrap_unit: str
    """Column that was resampled."""
    blocks: int
    first_block: str
    last_block: str
    draws: int
    confidence: float
    min_slice_rows: int
    """Fewest rows with which a slice was measured, for the report or for a gate."""
    names: dict[Role, str]
    """Name of each model in prose, such as `champion (version 7)`."""
    champion_seen: tuple[str, ...] = ()
    """Partitions of this holdout on which the champion was trained or selected. Its metrics here look too good."""
    champion_cannot_score: str = ""
    """Reason why the champion has no metrics on this holdout; empty if it has, or if there is no champion."""
    champion_weight: str = ""
    """Column that weighted the rows of the champion's training; empty if each row counted once."""
    overall: Part
    slices: tuple[Part, ...]
    classes: tuple[ClassFigures, ...] = ()
    """Classes of the label, in the order of the model's outputs; empty if the label is a number."""
    lists: ListFigures | None = None
    """Lists of the holdout, and why some are not measured; None if rows do not form lists."""
    texts: TextFigures | None = None
    """Losses of single tokens; None if rows are not texts, or if they were measured without tokens."""
    curves: Curves
    decision: GateDecision
    transitions: dict[str, GateDecision] = Field(default_factory=dict[str, GateDecision])
    """Transition, `canary` or `production` → decision of its own gates; empty without such gates."""
    own_metrics: tuple[OwnMetricFacts, ...] = ()
    """Metrics beside those of the objective."""
    bias: tuple[BiasFigures, ...] = ()
    serving: ServingCost | None = None
    """Latency and size of the challenger's bundle; None if predictions were measured without a bundle."""

    @property
    def measured(self) -> tuple[MetricFacts, ...]:
        """All metrics, in the order of a report."""
        return (*self.of_quality, *(metric for one in self.bias for metric in one.declared.facts))

    @property
    def of_quality(self) -> tuple[MetricFacts, ...]:
        """Metrics that say how good the predictions are: all but bias, of which a constant prediction has none."""
        return (*metrics_of(self.objective), *(one.declared.facts for one in self.own_metrics))

    @property
    def serving_values(self) -> dict[str, float]:
        """Latency and size by the name that a gate uses; empty if they were not measured."""
        return {} if self.serving is None else self.serving.values()

    def values(self, role: Role = "challenger") -> dict[str, float]:
        """Return the defined metrics of one model on the whole holdout, without intervals."""
        measured: Mapping[str, Interval] = self.overall.metrics.get(role, {})
        return {name: one.value for name, one in measured.items() if one.value is not None}

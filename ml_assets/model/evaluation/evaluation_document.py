"""Documents of an evaluation: the content of `evaluation.json` and of the report. Only data."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, JsonValue

from ml_assets.foundation.objective_facts import ObjectiveName
from ml_assets.model.evaluation.bias_spec import BiasSection
from ml_assets.model.evaluation.bootstrap import Interval
from ml_assets.model.evaluation.card_spec import CardSection
from ml_assets.model.evaluation.document import Document
from ml_assets.model.evaluation.explanation_document import Explanations
from ml_assets.model.evaluation.gate import Comparator
from ml_assets.model.evaluation.list_metrics import ListFigures
from ml_assets.model.evaluation.metrics import MetricFacts, metrics_of
from ml_assets.model.evaluation.serving_cost import ServingCost
from ml_assets.model.evaluation.spec import OwnMetricSection
from ml_assets.model.evaluation.thresholds import ThresholdTable
from resources.job.recoveries import Recovery

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


class GateDecision(Document):
    """Blessed, rejected or undecided, with the reasons."""

    status: DecisionStatus
    summary: str
    """One sentence."""
    reasons: tuple[str, ...]
    """Sentences of the rules that decided: the failed rules, else the undecided rules, else those that passed."""
    rules: tuple[RuleResult, ...]


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
    """Mean prediction minus mean label of the challenger (`slice_calibration`); None for a slice that is too small.
    Intervals of slices hold jointly."""


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

    calibration: dict[Role, tuple[CalibrationBin, ...]]
    roc: dict[Role, tuple[tuple[float, float], ...]]
    """(false positive rate, true positive rate), at most 200 points; only for binary labels."""
    scores: Histogram | None
    """Scores of the challenger; None for texts. Binary: scores of `negative` and `positive` rows. Classes: the largest
    probability of rows that are `wrong` and `right`. Lists: those of rows that are `not relevant` and `relevant`.
    Numbers: `residual`, label − prediction; the outermost bars hold all rows beyond them."""
    density: Density | None
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


class ComparedModel(Document):
    """Another registered model on the same holdout, as `evaluation.compared_with` names it."""

    name: str
    """Name in reports, such as `flight_delay, version 3`."""
    bundle: str
    """Digest of its bundle; empty if no version was found."""
    seen: tuple[str, ...] = ()
    """Partitions of this holdout on which it was trained or selected. Its metrics here look too good."""
    cannot_score: str = ""
    """Reason why it has no metrics; empty if it has."""
    weight: str = ""
    """Column that weighted the rows of its training; empty if each row counted once."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Metric → value; without metrics that are not defined on these rows."""
    improvements: dict[str, Interval] = Field(default_factory=dict)
    """Metric → improvement of the challenger over this model; positive if the challenger is better."""


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


class WorstSlice(Document):
    """Rows on which the challenger is worse than on all others."""

    where: tuple[tuple[str, str], ...]
    """One or two columns, each with its value or range."""
    rows: int
    blocks: int
    losses: dict[Role, float]
    """Mean loss of each model on these rows."""
    elsewhere: float
    """Mean loss of the challenger on all other rows."""
    difference: Interval
    """Mean loss of the challenger here minus elsewhere. Intervals of all slices looked at hold jointly."""


class WorstSlices(Document):
    """Slices of one or two columns on which the challenger is worse than on the other rows."""

    loss: str
    """Name of the loss of a row in a report."""
    columns: tuple[str, ...]
    """Columns looked at, declared slices first."""
    paired: int
    """Number of them, from the first on, that were looked at in pairs too."""
    candidates: int
    """Slices looked at."""
    least_rows: int
    """Fewest rows of a slice looked at."""
    confidence: float
    worse: int
    """Slices with an interval above zero."""
    shown: tuple[WorstSlice, ...]
    """The most certain of them, without those whose rows lie mostly in slices named before."""


class LossCurve(Document):
    """Losses of the training: (step, loss) points."""

    training: tuple[tuple[int, float], ...] = ()
    validation: tuple[tuple[int, float], ...] = ()
    best_step: int | None = None
    """Step of the weights that were kept."""


class SplitRows(Document):
    """Row counts of one split: rows used and rows left out."""

    split: str
    """train, validation or holdout."""
    first: str
    """Partition key."""
    last: str
    rows: int
    left_out: dict[str, int]
    """Reason → rows."""
    known_by: str
    """ISO 8601 UTC. Rows whose label became known later are left out."""

    @property
    def known_by_in_words(self) -> str:
        """`known_by` for people: `2013-11-01 00:00 UTC`."""
        return f"{datetime.fromisoformat(self.known_by):%Y-%m-%d %H:%M} UTC"

    @property
    def lost(self) -> int:
        """Rows left out for any reason."""
        return sum(self.left_out.values())


class ModelFacts(Document):
    """Facts about a model that no measurement shows, as they were declared when it was trained."""

    description: str
    card: CardSection
    table: str
    """Feature table."""
    label: str
    """Column that it predicts."""
    weight: str = ""
    """Column with the weights of the rows in training and measurement; empty if each row counts once."""
    inputs: dict[str, tuple[str, ...]]
    """`numeric`, `category` or `blob` → columns."""
    made_by: str
    """Import path of the model function or of the script."""
    hyperparameters: dict[str, JsonValue]
    training: dict[str, JsonValue]
    """Settings that can change the weights."""
    seed: int
    study: str = ""
    """Digest of the result of a study that chose values; empty for declared values."""
    values_from: str = ""
    """Origin of the values in a sentence, with the studies that do not count; empty for a model without a study."""
    begins_with: str = ""
    """`model/number` of the version that provided the initial weights; empty for random weights."""
    seen: str = ""
    """Days behind the weights: training, validation, initial versions, and the study that chose the values."""


class Report(Document):
    """An evaluation with its lineage: the content of `evaluation.json` and the only source of the HTML."""

    title: str
    """Name of the model."""
    partition: str
    lineage: dict[str, str]
    """Origin of the model, such as lake commit, snapshot digest, MLflow run, Dagster run. A value may be an http(s)
    address."""
    splits: tuple[SplitRows, ...] = ()
    """Splits on which the model was trained, selected and measured, oldest first."""
    loss: LossCurve | None = None
    recoveries: tuple[Recovery, ...] = ()
    """Interruptions of the training and the cost of each resume, by attempt."""
    rows_lost: int | None = None
    """Rows that an interrupted training left out, summed over epochs. Any value but 0 is a bug."""
    model: ModelFacts
    evaluation: Evaluation
    compared: tuple[ComparedModel, ...] = ()
    """Other registered models on the same holdout. No gate uses them."""
    thresholds: ThresholdTable | None = None
    """Thresholds with their costs; None if the pipeline declares no `costs`."""
    worst_slices: WorstSlices | None = None
    """None if the objective has no loss of single rows."""
    explanations: Explanations | None = None
    """None if the pipeline declares no `explanations`."""
    predictions: dict[str, Any] | None = None
    """Profile of the challenger's predictions on the holdout (`validation.profile`), a column for each output: the
    reference of live performance. None if they were measured without a bundle."""

    def to_json(self) -> str:
        """Return the content of `evaluation.json`; equal reports give equal text."""
        return self.model_dump_json(indent=1)

    @property
    def digest(self) -> str:
        """SHA-256 of `to_json()`, 64 hex digits: the identity of the evaluation."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

"""Documents of a report: an evaluation with its lineage, the content of `evaluation.json`. Only data."""

import hashlib
from datetime import datetime
from typing import Any

from pydantic import Field, JsonValue

from ml_assets.foundation.sections import Section
from ml_assets.model.evaluation.evaluation_document import Document, Evaluation, Role
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.spec import CostSection
from resources.job.events import Recovery


class CardSection(Section):
    """Intended use and known limits of a model, for its model card. Not part of the fingerprint."""

    intended_use: str = Field(default="", examples=["Staffing of the service desk."])
    """Decisions or products that the model is made for, and the people who use it."""
    not_intended_for: tuple[str, ...] = Field(default=(), examples=[["Pay of single persons."]])
    """Uses that look near and are wrong, one sentence each."""
    limits: tuple[str, ...] = ()
    """Known limits, one sentence each. The card adds those that the evaluation measured."""
    contact: str = ""
    """Team or address for questions about the model."""


class ThresholdFigures(Document):
    """Decisions of the challenger at one threshold, on the holdout."""

    threshold: float | None
    """A row with this probability or a larger one is decided positive; None: no row is."""
    positive: float
    """Share of the rows decided positive. All shares are by weight."""
    precision: float | None
    """Share of these that have label 1; None without such rows."""
    recall: float | None
    """Share of the rows of label 1 that are decided positive; None without such rows."""
    cost: Interval
    """Cost of 1,000 rows."""


class ThresholdTable(Document):
    """Thresholds with their costs."""

    declared: CostSection
    listed: tuple[ThresholdFigures, ...]
    """From no row to all rows; the chosen threshold is one of them."""
    chosen: ThresholdFigures
    """Threshold with the lowest cost on the validation rows."""
    validation_rows: int


UNNAMED = "prediction"
"""Name of the curve of a model whose prediction is one number."""


class ColumnImportance(Document):
    """Importance of one input column."""

    column: str
    added: Interval
    """Loss that shuffling the column adds, in the unit of the metric (of one that should be high: the part that is
    lost); intervals of all columns hold jointly."""


class PartialDependence(Document):
    """Mean prediction along one column."""

    column: str
    values: tuple[float, ...] | tuple[str, ...]
    """Ascending numbers, or categories by falling frequency."""
    means: dict[str, tuple[float, ...]]
    """Mean prediction at each of `values`, by class; `prediction` if the label has no classes."""


class Explanations(Document):
    """Explanations of the challenger."""

    metric: str
    """Loss that measures the importance."""
    rows: int
    """Holdout rows that were predicted again."""
    columns: tuple[ColumnImportance, ...]
    """All input columns, most important first."""
    dependence: tuple[PartialDependence, ...]
    """The most important columns without blobs."""


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


class NaiveGuess(Document):
    """A simple guess."""

    name: str
    """Prediction in words, such as `last known label of shop`."""
    value: float | None
    """Metric on the validation rows; None if it is not defined or not finite."""


class NaiveChoice(Document):
    """Simple guesses on the validation rows, and the one that is the naive baseline."""

    metric: str
    rows: int
    """Validation rows."""
    guesses: tuple[NaiveGuess, ...]
    """The mean of a group first, then last known labels of an entity."""
    chosen: str
    """Name of the best."""


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
    elsewhere: str = ""
    """Origin of a model that was trained elsewhere, in sentences; empty for a training of this platform."""


class Report(Document):
    """An evaluation with its lineage: the content of `evaluation.json` and the only source of the HTML."""

    title: str
    """Name of the model."""
    partition: str
    lineage: dict[str, str]
    """Origin of the model, such as lake commit, snapshot digest, MLflow run, Dagster run. A value may be an http(s)
    address."""
    splits: tuple[SplitRows, ...] = ()
    """Splits on which the model was trained, selected and measured, oldest first. Of a model that was trained elsewhere
    the last one alone."""
    loss: LossCurve | None = None
    recoveries: tuple[Recovery, ...] = ()
    """Interruptions of the training and the cost of each resume, by attempt."""
    rows_lost: int | None = None
    """Rows that an interrupted training left out, summed over epochs. Any value but 0 is a bug."""
    model: ModelFacts
    evaluation: Evaluation
    compared: tuple[ComparedModel, ...] = ()
    """Other registered models on the same holdout. No gate uses them."""
    naive: NaiveChoice | None = None
    """Choice of the naive baseline; None if the pipeline names no entity (`baseline.entity`)."""
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

"""Objectives of a pipeline, and the facts in which one differs from another.

This is the only place that decides by the name of an objective. Snapshots, training, evaluation and release ask here
for a fact, such as the allowed labels or the link of the model's output, and do not compare names. Here: plain facts,
for workers without polars too. Not here: the functions behind them (`training.step.objectives`,
`evaluation.metrics.metrics`, `snapshots.row_choice`).
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

ObjectiveName: TypeAlias = str
"""One of `NAMES`, `quantile` with another share between 0 and 1, or `ranking` with another number of places."""
Labels: TypeAlias = Literal["zero or one", "numbers", "counts", "classes", "relevance", "numbers of tokens"]
"""Labels that an objective accepts. Counts are whole numbers from 0. Classes are texts, whole numbers or booleans.
Relevance is a number from 0: 0 is not relevant, and twice the number is worth twice as much. A number of tokens is a
whole number from 1: the tokens of the row's text that are predicted."""
LEAST_SPREAD, LARGEST_SPREAD = 1e-16, 1e16
"""Standard deviations of a label, a number, between which float32 holds the squared errors of a batch of rows."""
LARGEST_LEVEL = 1e6
"""Largest mean of a label, a number, in standard deviations: float32 has seven digits."""
Link: TypeAlias = Literal["sigmoid", "identity", "exp", "softmax", "token log_softmax"]
"""Function from the raw output of a model to its prediction. `token log_softmax` takes the scores of all tokens to the
figures of a text."""
PADDING = -1
"""Token that fills up a text shorter than the others. It has no score, and is not predicted."""
ROUNDED = 1e-6
"""Distance of a prediction from its range that rounding explains. Evaluation moves such a prediction into the range."""
Picture: TypeAlias = Literal[
    "calibration",
    "coverage",
    "ranking",
    "scores",
    "fit",
    "residuals",
    "confusion",
    "depth",
    "positions",
    "frequencies",
]
"""Picture of a report: `evaluation.report.pictures` draws it."""


class UnknownObjective(ValueError):
    """An objective that no pipeline can have."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveFacts:
    """Facts of one objective."""

    name: ObjectiveName
    labels: Labels
    link: Link
    """Link of the network and of the reference model."""
    metrics: tuple[str, ...]
    """Metrics of gates and reports, in the order of a report. The first one measures slices."""
    chosen_by: str
    """Metric by which the validation rows choose the prior of the baseline and the penalty of the reference."""
    answer: str
    """Words for a prediction."""
    reference: str
    """Kind of the regression on the same columns, such as `logistic`; for texts, of the counts."""
    observed: str
    """Words for the mean label of some rows."""
    calibration: str
    """Words for mean prediction minus mean label of some rows; empty if predictions do not estimate labels."""
    pictures: tuple[Picture, ...]
    """Pictures of a report, beside the loss."""
    columns: tuple[str, ...] = ()
    """Names of the numbers of a prediction, if it has several numbers that are not probabilities of classes."""
    quantile: float | None = None
    """Share of the labels that should lie below the prediction; None if the prediction is not a quantile."""
    places: int | None = None
    """Places at the top of a list that the metrics look at; None if rows do not form lists."""

    @property
    def is_zero_or_one(self) -> bool:
        """True if labels are 0 or 1, so that their mean is the share of ones and a prediction is a probability."""
        return self.labels == "zero or one"

    @property
    def prediction_range(self) -> tuple[float, float]:
        """Smallest and largest value that a prediction may have."""
        return _RANGES[self.link]

    @property
    def error_power(self) -> int:
        """Power of an error in the loss: 1 for a quantile, else 2. It is the power of the label's unit, too."""
        return 2 if self.quantile is None else 1

    @property
    def has_classes(self) -> bool:
        """True if a prediction has a probability for each class, `[rows, classes]`, instead of one number a row."""
        return self.labels == "classes"

    @property
    def has_lists(self) -> bool:
        """True if rows form lists, whose order is predicted: `evaluation.group` names the list of a row."""
        return self.places is not None

    @property
    def takes_weights(self) -> bool:
        """True if rows may have weights. Rows of a list share one order, and tokens of a text one loss:
        neither has a weight of a row."""
        return not (self.has_lists or self.has_tokens)

    @property
    def reference_model(self) -> str:
        """Words for the reference model."""
        return f"{self.reference} {'counts' if self.has_tokens else 'regression'}"

    @property
    def has_tokens(self) -> bool:
        """True if a row is a text, whose tokens are predicted, each from those before it. The label is their number."""
        return self.labels == "numbers of tokens"

    @property
    def estimates_label(self) -> bool:
        """True if a prediction is an estimate of the label, so that their means can be compared."""
        return not (self.has_classes or self.has_lists or self.has_tokens)

    @property
    def trained_as(self) -> ObjectiveName:
        """Objective that training and bundles know: the number of places only measures."""
        return _RANKING if self.has_lists else self.name


_RANGES: dict[Link, tuple[float, float]] = {
    "sigmoid": (0.0, 1.0),
    "identity": (-math.inf, math.inf),
    "exp": (0.0, math.inf),
    "softmax": (0.0, 1.0),
    "token log_softmax": (0.0, math.inf),
}
_OBJECTIVES: dict[str, ObjectiveFacts] = {
    one.name: one
    for one in (
        ObjectiveFacts(
            name="binary",
            labels="zero or one",
            link="sigmoid",
            metrics=("auc", "logloss", "brier", "ece"),
            chosen_by="logloss",
            answer="the probability of the label 1",
            reference="logistic",
            observed="observed rate",
            calibration="mean probability minus observed rate",
            pictures=("calibration", "ranking", "scores"),
        ),
        ObjectiveFacts(
            name="regression",
            labels="numbers",
            link="identity",
            metrics=("rmse", "mae", "r2"),
            chosen_by="rmse",
            answer="the predicted value",
            reference="linear",
            observed="mean label",
            calibration="mean prediction minus mean label",
            pictures=("calibration", "fit", "residuals"),
        ),
        ObjectiveFacts(
            name="count",
            labels="counts",
            link="exp",
            metrics=("poisson_deviance", "mae", "rmse"),
            chosen_by="poisson_deviance",
            answer="the expected count",
            reference="Poisson",
            observed="mean count",
            calibration="mean expected count minus mean count",
            pictures=("calibration", "fit", "residuals"),
        ),
        ObjectiveFacts(
            name="multiclass",
            labels="classes",
            link="softmax",
            metrics=("logloss", "accuracy", "macro_auc", "macro_f1"),
            chosen_by="logloss",
            answer="the probability of each class",
            reference="logistic",
            observed="share predicted right",
            calibration="mean largest probability minus share predicted right",
            pictures=("calibration", "confusion", "scores"),
        ),
        ObjectiveFacts(
            name="next_token",
            labels="numbers of tokens",
            link="token log_softmax",
            metrics=("perplexity", "bits_per_token", "token_accuracy"),
            chosen_by="perplexity",
            answer="two figures of a text: the mean nats per predicted token (minus the logarithm of the probability "
            "that the model gave it), and the share of tokens that the model predicted right",
            reference="trigram",
            observed="tokens of a row",
            calibration="",
            pictures=("positions", "frequencies"),
            columns=("nats_per_token", "accuracy"),
        ),
    )
}
_QUANTILE = "quantile"
_RANKING = "ranking"
_PLACES = 10
"""Places that `ranking` alone stands for."""


def _quantile(share: float) -> ObjectiveFacts:
    return ObjectiveFacts(
        name=f"{_QUANTILE} {share!r}",
        labels="numbers",
        link="identity",
        metrics=("pinball", "coverage_error"),
        chosen_by="pinball",
        answer=f"the value below which {100 * share:.12g} % of such labels lie",
        reference="quantile",
        observed="mean label",
        calibration=f"share of labels at or below the prediction minus {share:g}",
        pictures=("coverage", "fit", "residuals"),
        quantile=share,
    )


def _ranking(places: int) -> ObjectiveFacts:
    return ObjectiveFacts(
        name=f"{_RANKING} {places}",
        labels="relevance",
        link="identity",
        metrics=("ndcg", "mrr", "recall"),
        chosen_by="ndcg",
        answer="a score: the higher it is, the further up the row belongs in its list",
        reference="linear",
        observed="mean relevance",
        calibration="",
        pictures=("depth", "scores"),
        places=places,
    )


NAMES = (*_OBJECTIVES, _quantile(0.9).name, _ranking(_PLACES).name)
"""Names of all objectives of a pipeline, with one of the quantiles and one of the rankings."""


def facts_of(name: str) -> ObjectiveFacts:
    """Return the facts of an objective, whose name is `facts.name`: `quantile 0.90` is `quantile 0.9`, and `ranking` is
    `ranking 10`.

    Raises `UnknownObjective`, which lists the names.
    """
    if name in _OBJECTIVES:
        return _OBJECTIVES[name]
    kind, _, number = name.partition(" ")
    if kind == _QUANTILE:
        return _quantile(_share(name, number))
    if kind == _RANKING:
        return _ranking(_number_of_places(name, number) if number else _PLACES)
    raise UnknownObjective(f"objective {name!r} is unknown: use one of {', '.join(NAMES)}")


def _share(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < 1:
        raise UnknownObjective(
            f"objective {name!r} needs a share between 0 and 1: `quantile 0.9` is the value below which 90 % of the "
            "labels lie, `quantile 0.5` the median"
        )
    return found


def _number_of_places(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UnknownObjective(
            f"objective {name!r} needs a number of places from 1: `ranking 10` looks at the first 10 places of a list"
        )
    return int(text)

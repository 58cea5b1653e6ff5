"""Retraining on request: its declaration, and the records of requests among the artifacts.

Here: the section `scoring.retrain`, and a JSON file for each request, which the sensor, its cool-down and the digest
read. Not here: the decision (`ml_assets.use.live.retrain`), the run (`sensors.models`).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ml_assets.foundation.sections import Section
from ml_assets.model.evaluation.metrics.metrics import MetricFacts
from resources.artifacts import Artifacts
from resources.words import did_you_mean

DRIFT = "drift"
"""Metric of a rule that needs no labels: PSI of the predictions beyond chance."""
HOLDOUT_DRIFT = "holdout_drift"
"""The same against the version's predictions on its holdout."""
TABLE_DRIFT = "table_drift"
"""Metric of a rule: number of columns of the feature table that drift, by its `drift` section."""
SKEW = "skew"
"""Metric of a rule: largest distance of an input from the training's window, as a multiple of its limit in `skew`."""
OF_INPUTS = (TABLE_DRIFT, SKEW)
"""Metrics that need no prediction."""
LiveSource: TypeAlias = Literal["predictions", "request_log"]
"""Predictions that live performance measures: the table `<model>/predictions`, or the answers of servers."""
_ROOT = "retraining"
"""Folder of all records among the artifacts: `retraining/<model>/<time>-<partition>.json`."""


class RetrainRule(Section):
    """Limit of the live performance of the version in production. Exactly one of `at_least` and `at_most`."""

    metric: str
    """`drift` and `holdout_drift` of the predictions, `table_drift` (columns of the feature table that drift), `skew`
    (largest distance of an input from the training, as a multiple of its limit), a metric of the objective, or a metric
    of the pipeline's own code."""
    at_least: float | None = None
    """Smallest allowed value."""
    at_most: float | None = None
    """Largest allowed value."""
    partitions: Annotated[int, Field(ge=1, le=60)] = 1
    """Newest measured partitions in a row that must break the limit. For a metric, only partitions with labels
    count."""

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give one of at_least and at_most")
        return self

    def allows(self, value: float) -> bool:
        """Return True if `value` keeps the limit."""
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)

    def __str__(self) -> str:
        """Return the limit in words."""
        return (
            f"at most {self.at_most:g} is allowed"
            if self.at_least is None
            else f"at least {self.at_least:g} is asked"
        )


class RetrainSection(Section):
    """Retraining that a sensor requests when the version in production breaks a limit."""

    when: Annotated[tuple[RetrainRule, ...], Field(min_length=1)]
    """Limits; one broken limit is enough."""
    cool_down_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 168.0
    """Hours after a request during which no other follows. Default: a week."""

    @property
    def cool_down(self) -> timedelta:
        """Least time between two requests."""
        return timedelta(hours=self.cool_down_hours)


def rule_faults(
    section: RetrainSection, metrics: Sequence[MetricFacts], *, has_skew: bool
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield path and words of each rule whose metric is unknown, or whose limit has the wrong side.

    `has_skew`: the pipeline declares `skew`.
    """
    known: Mapping[str, bool] = dict.fromkeys((DRIFT, HOLDOUT_DRIFT, *OF_INPUTS), False) | {
        one.name: one.higher_is_better for one in metrics
    }
    for place, rule in enumerate(section.when):
        path = ("scoring", "retrain", "when", place)
        if rule.metric not in known:
            yield (*path, "metric"), f"'{rule.metric}' is not measured{did_you_mean(rule.metric, known)}"
        elif known[rule.metric] and rule.at_most is not None:
            yield (*path, "at_most"), f"higher values of {rule.metric} are better: give at_least"
        elif not known[rule.metric] and rule.at_least is not None:
            yield (*path, "at_least"), f"lower values of {rule.metric} are better: give at_most"
        if rule.metric == SKEW and not has_skew:
            yield (
                (*path, "metric"),
                "skew is not measured: add the section `skew` to the pipeline, such as skew: {}",
            )
        elif rule.metric == SKEW and rule.partitions > 1:
            yield (*path, "partitions"), "skew compares `skew.partitions` together: remove it"


class RetrainRequest(BaseModel):
    """Request of a training, with its reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    partition: str
    """Partition to train."""
    at: datetime
    version: int
    """Version in production that broke the limit."""
    reason: str
    """Broken limits with their partitions and values."""

    @property
    def name(self) -> str:
        """Name of the request: file name of its record, and key of its run."""
        return f"{self.at:%Y%m%dT%H%M%SZ}-{self.partition}"


def record_request(artifacts: Artifacts, request: RetrainRequest) -> None:
    """Store the record of a request. Raises `ArtifactsError`."""
    with artifacts.create(f"{_ROOT}/{request.model}", f"{request.name}.json") as stream:
        stream.write(request.model_dump_json(indent=1).encode())


def states_of_requests(artifacts: Artifacts, model: str) -> list[str]:
    """Return a line for each record of a request, which changes with its content. Raises `ArtifactsError`."""
    return sorted(map(" ".join, artifacts.states(f"{_ROOT}/{model}").items()))


def requests_since(artifacts: Artifacts, model: str, since: datetime) -> list[RetrainRequest]:
    """Return the requests of a model from `since` (UTC) on, oldest first. Raises `ArtifactsError`."""
    name, first = f"{_ROOT}/{model}", f"{since:%Y%m%dT%H%M%SZ}"
    files = sorted(file for file in artifacts.files(name) if file >= first)
    if not files:
        return []
    folder = artifacts.pull(name, files)
    return [RetrainRequest.model_validate_json((folder / file).read_text()) for file in files]

"""Routes about costs: what trainings reserved and cost, in sums and one by one. They change nothing."""

from dataclasses import asdict
from datetime import date
from typing import Annotated

from fastapi import Query
from pydantic import Field

from ml_assets.extras.api.frame import ApiParts, Routes
from ml_assets.extras.api.shapes import RunId, Shape
from ml_assets.extras.costs.costs import By, Spending


class SpendingDocument(Shape):
    """Hours that were reserved, and their price."""

    gpu_hours: float
    idle_gpu_hours: float = Field(
        description="Part of `gpu_hours` in which nothing was computed that was kept."
    )
    core_hours: float
    gib_hours: float
    money: float | None = Field(description="Price of all that has one; null without a table of prices.")
    unpriced_gpu_hours: float = Field(description="GPU hours of kinds without a price, which `money` lacks.")

    @classmethod
    def of(cls, spent: Spending) -> "SpendingDocument":
        """Return the document of a sum."""
        return cls(**asdict(spent))


class CostRowDocument(Shape):
    """Costs of one group."""

    name: str
    trainings: int
    spent: SpendingDocument


class CostsDocument(Shape):
    """Costs of all trainings; those that failed, diverged, were cancelled or lost cost, too."""

    by: By
    since: date | None
    rows: list[CostRowDocument]
    total: CostRowDocument
    currency: str
    unpriced: list[str] = Field(description="Kinds of GPU without a price.")


class GoodputDocument(Shape):
    """Wall time of a training in seconds, by its parts."""

    queue: float
    start_up: float
    data_wait: float
    compute: float
    checkpoint: float
    lost_work: float
    recovery: float


class TrainingCostDocument(Shape):
    """Costs of one training over all its launches."""

    model: str
    partition: str
    fingerprint: str
    states: list[str] = Field(description="State of each attempt, oldest first.")
    spent: SpendingDocument
    goodput: GoodputDocument
    currency: str


class ScheduledShareDocument(Shape):
    """Scheduled trainings of a pipeline that ended, each with its repetitions, and those of them that completed."""

    model: str
    completed: int
    ended: int


class ScheduledTrainingsDocument(Shape):
    """Scheduled trainings of all pipelines that ended since a day."""

    since: date | None
    pipelines: list[ScheduledShareDocument]


def add_spending(routes: Routes, parts: ApiParts) -> None:
    """Add the routes."""

    @routes.add(
        "GET",
        "/costs",
        role="viewer",
        summary="What trainings reserved and cost",
        refuses=(409,),
        kept_while=(parts.read.usage,),
    )
    def costs(
        by: By = "pipeline",
        since: Annotated[date | None, Query(description="First UTC day that counts.")] = None,
    ) -> CostsDocument:
        with parts.declared:
            found = parts.context.costs(by, since)
        rows = [
            CostRowDocument(name=one.name, trainings=one.trainings, spent=SpendingDocument.of(one.spent))
            for one in (*found.rows, found.total)
        ]
        return CostsDocument(
            by=found.by,
            since=found.since,
            rows=rows[:-1],
            total=rows[-1],
            currency=found.currency,
            unpriced=list(found.unpriced),
        )

    @routes.add(
        "GET", "/scheduled-trainings", role="viewer", summary="Share of scheduled trainings that completed"
    )
    def scheduled_trainings(
        since: Annotated[date | None, Query(description="First UTC day. Default: 30 days ago.")] = None,
    ) -> ScheduledTrainingsDocument:
        found = parts.context.scheduled_trainings(since)
        shares = [ScheduledShareDocument(**asdict(one)) for one in found]
        return ScheduledTrainingsDocument(since=since, pipelines=shares)

    @routes.add(
        "GET",
        "/training-runs/{id}/costs",
        role="viewer",
        summary="Costs of a training, and the parts of its wall time",
        refuses=(404, 409),
        kept_while=(parts.read.run(), parts.read.usage),
    )
    def training_costs(id: RunId) -> TrainingCostDocument:
        found = parts.context.training_cost(id)
        return TrainingCostDocument(
            model=found.model,
            partition=found.partition,
            fingerprint=found.fingerprint,
            states=list(found.states),
            spent=SpendingDocument.of(found.spent),
            goodput=GoodputDocument(**asdict(found.goodput)),
            currency=found.currency,
        )

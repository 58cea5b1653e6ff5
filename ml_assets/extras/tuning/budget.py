"""Budget of a study: the hours after which it begins no further trial. Not here: the count of the hours (`study`)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from ml_assets.foundation.sections import Section


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Cost of a study so far, over all its launches."""

    hours: float
    """Wall time in which it ran trials."""
    worker_hours: float
    """Hours of all workers of all trials, over all attempts."""


class BudgetSection(Section):
    """Hours after which a study begins no further trial."""

    hours: float | None = Field(default=None, gt=0)
    """Hours of wall time in which the study runs trials, queues of the cluster included. Time between two launches does
    not count."""
    worker_hours: float | None = Field(default=None, gt=0)
    """Hours of all workers of all trials. The time in which GPUs are only reserved does not count."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.hours is None and self.worker_hours is None:
            raise ValueError("the budget is empty: give hours or worker_hours, or remove budget")
        return self

    def spent_says(self, spent: Spent) -> str:
        """Return the spent part of the budget in words; empty if hours are left."""
        for limit, took, unit in (
            (self.hours, spent.hours, "hours"),
            (self.worker_hours, spent.worker_hours, "worker hours"),
        ):
            if limit is not None and took >= limit:
                return f"the budget of {limit:g} {unit} is spent ({took:.3g})"
        return ""


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that lie in at least one of `spans`, pairs of a start and an end in seconds.

    Two processes that run the same study at the same time use the wall clock once.
    """
    covered, until = 0.0, -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered

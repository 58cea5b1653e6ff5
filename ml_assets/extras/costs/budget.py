"""Monthly budgets: money of the trainings of a pipeline in this calendar month, UTC, against the table of prices.

A training that runs counts with what it reserved so far. Not here: a study's own budget of hours (`tuning`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime

from ml_assets.extras.costs.costs import costs_of, read_records
from ml_assets.extras.costs.prices import PriceTable, read_prices
from ml_assets.model.steps.usage import UsageRecord
from resources.platform import Platform

_WARN_AT = 0.8
"""Share of a budget from which a training warns."""


class BudgetSpent(Exception):
    """The trainings of a pipeline cost their budget of this month, so no further one begins."""


@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """Budget of a pipeline in a month."""

    model: str
    month: str
    """Such as `2026-11`."""
    limit: float
    spent: float
    currency: str
    wrong: str = ""
    """Sentence about a name that no pipeline has, with the remedy; empty for a declared pipeline."""

    @property
    def is_spent(self) -> bool:
        """True if no further training may begin."""
        return self.spent >= self.limit

    @property
    def says(self) -> str:
        """Sentence once 80 % are spent; empty before."""
        if not self.is_spent and self.spent < _WARN_AT * self.limit:
            return ""
        money = f"{self.spent:.2f} of {self.limit:.2f} {self.currency}".rstrip()
        return f"trainings of {self.model} cost {money} in {self.month}, their budget"


def budgets_of(
    records: Iterable[UsageRecord], prices: PriceTable | None, today: date | None = None
) -> list[BudgetState]:
    """Return the budgets of the table, by pipeline, with what was spent in the month of `today`."""
    if prices is None or not prices.monthly_budget:
        return []
    month = (today or datetime.now(UTC).date()).replace(day=1)
    rows = costs_of(records, prices, "pipeline", month).rows
    spent = {one.name: one.spent.money or 0.0 for one in rows}
    return [
        BudgetState(
            model=model,
            month=f"{month:%Y-%m}",
            limit=limit,
            spent=spent.get(model, 0.0),
            currency=prices.currency,
        )
        for model, limit in sorted(prices.monthly_budget.items())
    ]


def budget_of(platform: Platform, model: str) -> BudgetState | None:
    """Return the budget of a pipeline; None without one. Raises `PricesRefused` and `ArtifactsError`."""
    prices = read_prices(platform.settings.prices)
    if prices is None or model not in prices.monthly_budget:
        return None
    records = read_records(platform.artifacts, platform.settings.environment, model=model)
    return next(one for one in budgets_of(records, prices) if one.model == model)


def require_budget(platform: Platform, model: str) -> str:
    """Return a warning for people if 80 % are spent, else an empty text. Raises `BudgetSpent` if all is."""
    state = budget_of(platform, model)
    if state is None:
        return ""
    if state.is_spent:
        raise BudgetSpent(
            f"{state.says}. No training begins before next month: raise monthly_budget in {platform.settings.prices}, "
            "or wait. A training that was stopped resumes from its checkpoint"
        )
    return state.says

"""Declared bias metrics: an item of `bias` in the section `evaluation`. Measures nothing."""

from typing import ClassVar

from pydantic import Field

from ml_assets.foundation.sections import Section
from ml_assets.model.evaluation.metrics import MetricFacts


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

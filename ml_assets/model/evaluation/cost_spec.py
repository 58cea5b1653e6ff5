"""Declared costs of wrong decisions: the section `costs` of `evaluation`. Measures nothing."""

from typing import Self

from pydantic import Field, model_validator

from ml_assets.foundation.sections import Section


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

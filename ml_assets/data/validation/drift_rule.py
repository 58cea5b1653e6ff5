"""Policies of comparisons with the past: the section `drift` of a table, and `skew` of a model.

Values only. Not here: the comparison (`table_drift.py`).
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ml_assets.data.validation.column_types import NUMERIC
from ml_assets.data.validation.contract import Contract
from ml_assets.foundation.sections import Section
from resources.words import did_you_mean

RULE = "drift"
"""Rule of the findings about drifts."""

Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_COMPARED = NUMERIC | {"bool", "string", "categorical", "duration"}
"""Types with a distribution in the profile, beside decimals."""


class ColumnPolicy(Section):
    """Limits of the distance of each column."""

    at_most: Limit = 0.1
    """Largest distance that is never reported: population stability index (PSI) beyond chance. In the usual reading,
    0.1 is a moderate change and 0.25 a large one."""
    columns: dict[str, Limit] = Field(default_factory=dict[str, float], examples=[{"price": 0.2}])
    """The same for single columns."""
    ignore: tuple[str, ...] = Field(default=(), examples=[["season"]])
    """Columns that are not compared."""

    def limit_of(self, column: str) -> float:
        """Return the declared limit of a column."""
        return self.columns.get(column, self.at_most)


class GivenOthers(Section):
    """Comparison of the mean of each number column with its prediction from the other columns."""

    window: Annotated[int, Field(ge=8, le=366)] = 70
    """Partitions before it that say how far means are from their predictions. It is longer than that of distributions,
    because a month knows too little about rare days."""
    at_most: Limit = 0.3
    """Largest distance of a mean from its prediction that is never reported, in standard deviations of the column."""


def _switched_off(value: Any) -> Any:
    # YAML reads an unquoted off as false.
    return None if value is False or value == "off" else value


GivenOthersSection = Annotated[
    GivenOthers | None,
    BeforeValidator(_switched_off, json_schema_input_type=GivenOthers | Literal["off", False]),
]
"""A policy, or `off`: no mean is compared with its prediction."""


class DriftRule(ColumnPolicy):
    """Comparison of a partition with the partitions before it, from stored profiles."""

    window: Annotated[int, Field(ge=8, le=366)] = 28
    """Partitions before it. A partition is compared as soon as main holds half of them."""
    same_weekday: bool = False
    """Compare days with days of the same weekday only. The window then reaches back as many weeks."""
    severity: Literal["warn", "error"] = "warn"
    """`warn`: a drift is shown and lets the partition pass. `error`: it keeps the partition from main, like a broken
    rule of the contract."""

    given_others: GivenOthersSection = GivenOthers()
    """Comparison of means with their predictions; `off`: only distributions are compared."""

    @property
    def least(self) -> int:
        """Least number of earlier partitions."""
        return (self.window + 1) // 2


class SkewRule(ColumnPolicy):
    """Comparison of the newest partitions with those that the version in production was trained on."""

    partitions: Annotated[int, Field(ge=1, le=60)] = 7
    """Newest partitions that are compared together. The window of the training must hold eight times as many."""
    severity: Literal["warn", "error"] = "warn"
    """Colour of the check: `warn` is yellow, `error` red. Neither stops anything."""


LEAST_BLOCKS = 8
"""Least number of blocks of `SkewRule.partitions` in a training's window."""


def policy_faults(
    policy: ColumnPolicy, contract: Contract, at: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield path and words of each column of `policy` that cannot be compared. `at` is the path of the policy."""
    named = [((*at, "columns", name), name) for name in policy.columns]
    named += [((*at, "ignore", place), name) for place, name in enumerate(policy.ignore)]
    for path, name in named:
        column = contract.by_name.get(name)
        if column is None:
            yield path, f"'{name}' is not a column of the contract{did_you_mean(name, contract.names)}"
        elif path[len(at)] == "columns" and (why := _not_compared(contract, name)):
            yield path, f"'{name}' {why}: leave it out"
        elif path[len(at)] == "columns" and name in policy.ignore:
            yield path, f"'{name}' is in `ignore`, too: leave it out of one of them"


def _not_compared(contract: Contract, name: str) -> str:
    dtype = contract.by_name[name].dtype
    if contract.hides(name):
        return "is sensitive, so its profile has no distribution to compare"
    if not (dtype in _COMPARED or dtype.startswith("decimal")):
        return f"is a {dtype}, which is not compared"
    return ""

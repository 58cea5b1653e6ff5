"""A gate: one rule that a version must pass, as `defs.yaml` declares it. Decides nothing."""

import math
from dataclasses import dataclass
from datetime import date
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ml_assets.foundation.sections import Section
from ml_assets.model.evaluation.serving_cost import SERVING_NAMES

Comparator = Literal["champion", "baseline", "reference"]
"""Model to compare a challenger with: the version in production, the naive model, or a regression on the same
columns (of texts: counts of three tokens in a row)."""
SliceValue = str | bool | int | float | date
EVERY = "*"
"""Slice value that stands for every value of the column."""


@dataclass(frozen=True)
class Margin:
    """Margin that an improvement has to clear, in the metric's unit, or as a share of the other model's value."""

    amount: float
    relative: bool = False


class Gate(Section):
    """One rule. Exactly one of `at_least`, `at_most` (value threshold) and `better_than` (change threshold).

    A value threshold is compared with the value measured on this holdout. A change threshold is compared with the
    paired block-bootstrap interval of the improvement: passed when the whole interval lies above the margin,
    failed when the whole interval lies below it, undecided in between.
    """

    name: str
    """Name in decisions and reports; unique within the pipeline."""
    metric: str
    """binary: auc, logloss, brier, ece. regression: rmse, mae, r2. quantile: pinball, coverage_error.
    count: poisson_deviance, mae, rmse. multiclass: logloss, accuracy, macro_auc, macro_f1. ranking: ndcg, mrr, recall.
    next_token: perplexity, bits_per_token, token_accuracy.
    Or the name of a function of `metrics`, or `demographic_parity_COLUMN` or `equal_opportunity_COLUMN` of an item of
    `bias`. With `at_most`, also latency and size of the bundle: row_p50_ms, row_p99_ms, batch_p50_ms, batch_p99_ms (of
    1,000 rows), bundle_mb."""
    at_least: float | None = None
    """Value that the metric must reach."""
    at_most: float | None = None
    """Value that the metric must not exceed."""
    better_than: Comparator | None = None
    """Model that the challenger must beat."""
    margin: float | str = 0.0
    """Margin of `better_than`: a number in the metric's unit, or "0.5%" of the other model's value. Positive
    always means better, also for losses. A negative margin allows a model that is worse by up to this amount."""
    slice: dict[str, SliceValue] | None = None
    """`{origin: JFK}` applies to one slice, `{origin: "*"}` to each, with intervals that hold jointly. The value is one
    of the column's type: text in quotes where YAML reads something else (`"NO"`, `"2013-11-01"`)."""
    min_rows: int | None = Field(default=None, ge=1)
    """Slices with fewer rows are left out; `min_slice_rows` of the section unless given."""
    confidence: float | None = Field(default=None, gt=0.5, lt=1)
    """Confidence of the interval; that of the section unless given."""
    on_undecided: Literal["undecided", "pass"] = "undecided"
    """`pass` turns a change threshold into a guard rail: it fails only if the interval shows harm."""
    on_undefined: Literal["undecided", "pass"] = "undecided"
    """Outcome if the rows cannot decide at all: fewer than `min_blocks` blocks, one label in all rows, a metric that
    is not defined, or a margin in percent of another model's value that is 0. A rule that fails there still fails."""

    @field_validator("margin")
    @classmethod
    def _margin_is_readable(cls, margin: float | str) -> float | str:
        _read(margin)
        return margin

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        given = [name for name in ("at_least", "at_most", "better_than") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"gate {self.name!r}: give one of at_least, at_most, better_than; found {found}")
        if self.better_than is None and (stray := self._given("margin", "confidence", "on_undecided")):
            raise ValueError(f"gate {self.name!r}: {', '.join(stray)} needs better_than")
        if self.slice is not None and len(self.slice) != 1:
            raise ValueError(f"gate {self.name!r}: slice is one `column: value`; found {self.slice}")
        if self.is_about_serving and (
            self.at_most is None or self._given("slice", "min_rows", "on_undefined")
        ):
            raise ValueError(
                f"gate {self.name!r}: {self.metric} takes `at_most`, and nothing about rows or slices"
            )
        return self

    def _given(self, *names: str) -> list[str]:
        """Return those of the keys that differ from their defaults. The ledger stores a gate with all its keys."""
        fields = type(self).model_fields
        return [name for name in sorted(names) if getattr(self, name) != fields[name].default]

    @property
    def is_about_serving(self) -> bool:
        """True if it limits latency or size of the bundle, which need no rows to compare on."""
        return self.metric in SERVING_NAMES

    @property
    def required_margin(self) -> Margin:
        """`margin` as a number with its unit."""
        return _read(self.margin)

    @property
    def sliced(self) -> tuple[str, SliceValue] | None:
        """Name and value of the slice, or None for the whole holdout."""
        return next(iter(self.slice.items())) if self.slice else None


def _read(margin: float | str) -> Margin:
    if isinstance(margin, str):
        number, percent, rest = margin.partition("%")
        try:
            if percent and not rest and math.isfinite(share := float(number) / 100):
                return Margin(share, relative=True)
        except ValueError:
            pass
        raise ValueError(f'margin must be a number or a share such as "0.5%", not {margin!r}')
    return Margin(margin)

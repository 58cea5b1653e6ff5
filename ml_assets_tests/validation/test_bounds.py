"""Bounds of a contract are exact numbers: no value at a bound is on its wrong side because of rounding."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.column_types import polars_type
from ml_assets.data.validation.contract import Contract


def _failing(values: list[Any], column: dict[str, Any], **more: Any) -> int:
    """Return how many values of the column `x` break a rule."""
    contract = Contract.model_validate({"columns": [{"name": "x", "nullable": True, **column}], **more})
    frame = pl.DataFrame({"x": values}, schema={"x": polars_type(column["dtype"])})
    return sum(one.failing_rows for one in check_partitions({"all": frame}, contract)["all"])


def test_a_duration_at_its_bound_is_inside() -> None:
    """8.2 s were rejected by `le: 8.2`, which is 8,199,999.99… microseconds as a float."""
    took = [timedelta(seconds=8, milliseconds=200), timedelta(seconds=8, microseconds=200_001)]
    assert _failing(took, {"dtype": "duration", "le": 8.2}) == 1
    assert _failing(took, {"dtype": "duration", "ge": 8.2}) == 0


def test_a_share_of_nulls_at_its_bound_is_inside() -> None:
    """29 of 100 were rejected by `max_null_share: 0.29`, which is 28.99… rows as a float."""
    values = [None] * 29 + [1] * 71
    assert _failing(values, {"dtype": "int64", "max_null_share": 0.29}) == 0


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [("float64", float("nan")), ("int64", float("inf")), ("float32", 10**400), ("duration", 1e-7)],
)
def test_a_bound_that_is_no_number_of_its_type_is_refused(dtype: str, bound: float) -> None:
    with pytest.raises(ValidationError):
        Contract.model_validate({"columns": [{"name": "x", "dtype": dtype, "le": bound}]})


def test_a_nan_counts_as_null_in_a_condition() -> None:
    """polars takes it for the largest number: it passed `x > 0` and broke `x <= 10`."""
    for expression in ("x > 0", "x <= 10", "x IS NULL OR x = 1"):
        condition = {"conditions": [{"name": "holds", "expression": expression}]}
        assert _failing([float("nan"), 1.0, None], {"dtype": "float64"}, **condition) == 0


WHOLE = {"int8": (-(2**7), 2**7 - 1), "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1)}
NEAR = st.sampled_from([0, 1, 2**7, 2**24, 2**53, 2**63, 2**64, -(2**7), -(2**53), -(2**63)])
BOUNDS = st.one_of(
    st.builds(lambda base, by: base + by, NEAR, st.integers(-2, 2)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1000, 1000, places=1).map(float),
)


@given(
    dtype=st.sampled_from(sorted(WHOLE)), bound=BOUNDS, base=NEAR, by=st.integers(-2, 2), is_low=st.booleans()
)
@example(dtype="int64", bound=float(2**53), base=2**53, by=1, is_low=False)
def test_whole_numbers_are_compared_with_a_bound_exactly(
    dtype: str, bound: float, base: int, by: int, is_low: bool
) -> None:
    low, high = WHOLE[dtype]
    value = min(max(base + by, low), high)
    inside = Fraction(str(bound)) <= value if is_low else Fraction(str(bound)) >= value
    assert _failing([value], {"dtype": dtype, ("ge" if is_low else "le"): bound}) == (not inside)


@given(bound=BOUNDS, value=st.floats(allow_nan=False), is_low=st.booleans())
@example(bound=2**53 + 1, value=float(2**53), is_low=True)
def test_floats_are_compared_with_a_bound_exactly(bound: float, value: float, is_low: bool) -> None:
    exact = Decimal(str(bound)) if isinstance(bound, int) else Decimal(bound)
    inside = exact <= Decimal(value) if is_low else exact >= Decimal(value)
    assert _failing([value], {"dtype": "float64", ("ge" if is_low else "le"): bound}) == (not inside)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.booleans())
def test_a_float32_passes_the_bound_that_it_is_written_as(value: float, is_low: bool) -> None:
    written = float(str(np.float32(value)))
    assert _failing([value], {"dtype": "float32", ("ge" if is_low else "le"): written}) == 0


def test_a_bound_that_float32_does_not_hold_is_not_rounded() -> None:
    assert _failing([2.0**24], {"dtype": "float32", "ge": 2**24 + 1}) == 1
    assert _failing([float("inf")], {"dtype": "float32", "le": 1e39}) == 1

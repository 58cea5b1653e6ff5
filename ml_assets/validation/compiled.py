"""A contract as a pandera schema, and pandera's answer as rows that break rules.

The one file that knows pandera; it is imported inside functions because loading it takes most of a second.
Naming and explaining what it finds belongs in `check.py`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.validation.column_types import FLOATS, POLARS_TYPES
from ml_assets.validation.contract import Column, Contract

if TYPE_CHECKING:
    import pandera.polars as pa

PARTITION = "__partition"
"""Helper column: which partition a row of the joined frame belongs to."""


class CheckFailed(RuntimeError):
    """A rule could not be evaluated at all: a fault of the program or the rule, not of the data."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One rule broken somewhere in the joined frame."""

    rule: str
    column: str | None
    rows: npt.NDArray[np.int64]
    """Positions of the rows that break it, ascending."""


def violations(frame: pl.DataFrame, contract: Contract) -> list[Violation]:
    """Validate one frame that has the contract's columns, plus `PARTITION` where the contract has a key.

    In the contract's order of columns, keys last.
    """
    from pandera.config import ValidationDepth, config_context
    from pandera.errors import SchemaErrors

    # The depth is said because the environment can change it: by default even to "schema only".
    with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
        try:
            _compile(contract).validate(frame, lazy=True)
        except SchemaErrors as errors:
            return [_violation(error) for error in errors.schema_errors]
    return []


def _violation(error: Any) -> Violation:
    rule = str(getattr(error.check, "name", error.check))
    if not isinstance(error.check_output, pl.DataFrame):
        raise CheckFailed(f"rule {rule} of column {error.column_name} could not be evaluated: {error}")
    passed = error.check_output.to_series().to_numpy()
    return Violation(rule=rule, column=error.column_name, rows=np.flatnonzero(~passed))


@lru_cache(maxsize=32)
def _compile(contract: Contract) -> "pa.DataFrameSchema":
    import pandera.polars as pa

    over_rows = [_not_repeated("duplicate_key", [PARTITION, *contract.key])] if contract.key else []
    over_rows += [
        _not_repeated(f"duplicate_value:{name}", [PARTITION, name])
        for name, column in contract.by_name.items()
        if column.unique
    ]
    return pa.DataFrameSchema(
        {
            # Nullable for pandera, because its own null check keeps every failing row in memory.
            name: pa.Column(POLARS_TYPES[column.dtype], checks=_checks(column), nullable=True)
            for name, column in contract.by_name.items()
        },
        checks=over_rows,
    )


def _checks(column: Column) -> list["pa.Check"]:
    import pandera.polars as pa

    # One failure case is enough for pandera: which rows fail is read from the check's output.
    common: dict[str, Any] = {"n_failure_cases": 1}
    built_in: Any = pa.Check
    checks: list[pa.Check] = []
    if not column.nullable:
        is_float = column.dtype in FLOATS

        def present(data: Any) -> pl.LazyFrame:
            value = pl.col(data.key)
            return data.lazyframe.select(
                value.is_not_null() & value.is_not_nan() if is_float else value.is_not_null()
            )

        checks.append(pa.Check(present, name="null", ignore_na=False, **common))
    if column.ge is not None and column.le is not None:
        checks.append(built_in.in_range(column.ge, column.le, name="out_of_range", **common))
    elif column.ge is not None:
        checks.append(built_in.ge(column.ge, name="out_of_range", **common))
    elif column.le is not None:
        checks.append(built_in.le(column.le, name="out_of_range", **common))
    if column.isin is not None:
        checks.append(built_in.isin(list(column.isin), name="unknown_category", **common))
    if column.pattern is not None:
        checks.append(built_in.str_matches(f"(?:{column.pattern})$", name="pattern", **common))
    return checks


def _not_repeated(name: str, columns: list[str]) -> "pa.Check":
    import pandera.polars as pa

    *_, last = columns

    def once(data: Any) -> pl.LazyFrame:
        repeated = pl.struct(columns).is_duplicated()
        return data.lazyframe.select(~repeated | pl.col(last).is_null())

    return pa.Check(once, name=name, n_failure_cases=1)

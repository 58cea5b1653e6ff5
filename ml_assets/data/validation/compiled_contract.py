"""Contract as rules, and the rows that break one.

One look at all columns finds the rules that rows may break; pandera finds the rows of these. Only `_compile` knows
pandera. It imports it at the first such rule, because loading takes most of a second. `check.py` turns the violations
into findings.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.data.validation.column_types import FLOATS, is_nested, polars_type
from ml_assets.data.validation.contract import Bound, Column, Contract, whole

PARTITION = "__partition"
"""Helper column: number of the partition to which a row of the joined frame belongs."""


class CheckFailed(RuntimeError):
    """A rule could not be evaluated. The fault is in the program or the rule, not in the data."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Rule that rows of the joined frame break."""

    rule: str
    column: str | None
    """Column; name of the condition for the rule `condition`; None for the primary key."""
    rows: npt.NDArray[np.int64]
    """Positions of the rows that break it, ascending."""


def violations(frame: pl.DataFrame, contract: Contract) -> list[Violation]:
    """Validate one joined frame; return the broken rules in the contract's order of columns, uniqueness last.

    The frame has the contract's columns. If the contract has a primary key or unique columns, it also has `PARTITION`.
    Raises `CheckFailed` if a rule cannot be evaluated.
    """
    rows = frame.rename({name: _inside(name) for name in contract.names})
    # Replace bytes by their number: only nulls and lengths are checked, and pandera would write all bytes of a bad row
    # as JSON. Replace durations by microseconds, which pandera can write at all.
    plain = [
        pl.col(_inside(name)).bin.size() for name, one in contract.by_name.items() if one.dtype == "binary"
    ]
    plain += [pl.selectors.duration().dt.total_microseconds()]
    rows = rows.with_columns(plain)
    found = [_violation(error) for rules in _suspects(rows, _rules(contract)) for error in rules.errors(rows)]
    return [*found, *_false_conditions(frame, contract)]


def _inside(name: str) -> str:
    """Return the name of a column within a check. pandera adds a `check_output`, which a table may have as well; no
    name of a contract or of pandera begins with `_`."""
    return f"_{name}"


def _false_conditions(frame: pl.DataFrame, contract: Contract) -> list[Violation]:
    # Without pandera, which writes whole rows of a failed rule over columns as text, and cannot for every type.
    if not contract.conditions:
        return []
    # A NaN is a missing value. polars takes it for the largest number.
    known = frame.with_columns(pl.selectors.float().fill_nan(None))
    results = known.select(one.parsed.fill_null(value=True).alias(one.name) for one in contract.conditions)
    found = {name: np.flatnonzero(~results[name].to_numpy()) for name in results.columns}
    return [Violation(rule="condition", column=name, rows=rows) for name, rows in found.items() if len(rows)]


def _violation(error: Any) -> Violation:
    rule, _, named = str(getattr(error.check, "name", error.check)).partition(":")
    column = named or (error.column_name and error.column_name.removeprefix(_inside("")))
    if not isinstance(error.check_output, pl.DataFrame):
        raise CheckFailed(f"rule {rule} of column {column} could not be evaluated: {error}")
    passed = error.check_output.to_series().to_numpy()
    return Violation(rule=rule, column=column, rows=np.flatnonzero(~passed))


@dataclass(frozen=True, kw_only=True)
class _Rule:
    name: str
    passes: pl.Expr
    """True for each row that passes."""
    nulls_pass: bool = True


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """Rules of one column, or a rule over rows."""

    column: str | None
    """Name `_inside`. None: for pandera a rule over rows belongs to no column, so the name of the rule holds it."""
    reads: tuple[str, ...]
    rules: tuple[_Rule, ...]

    @property
    def hold(self) -> pl.Expr:
        """True if certainly no row breaks a rule."""
        return pl.all_horizontal(
            (
                one.passes.fill_null(value=False) | pl.col(self.column).is_null()
                if one.nulls_pass and self.column is not None
                else one.passes.fill_null(value=False)
            ).all()
            for one in self.rules
        )

    def errors(self, frame: pl.DataFrame) -> Sequence[Any]:
        """Return pandera's errors, one for each rule that rows of `frame` break."""
        return _compile(self)(frame.select(self.reads))


@lru_cache(maxsize=32)
def _rules(contract: Contract) -> Sequence[_Rules]:
    of_columns = [
        _Rules(column=_inside(name), reads=(_inside(name),), rules=rules)
        for name, column in contract.by_name.items()
        if (rules := _rules_of(name, column))
    ]
    unique = [("duplicate_primary_key", contract.primary_key)] if contract.primary_key else []
    unique += [
        (f"duplicate_value:{name}", (name,)) for name, column in contract.by_name.items() if column.unique
    ]
    over_rows = [
        _Rules(
            column=None,
            reads=tuple(dict.fromkeys((PARTITION, *map(_inside, columns)))),
            rules=(_not_repeated(name, [PARTITION, *map(_inside, columns)]),),
        )
        for name, columns in unique
    ]
    return (*of_columns, *over_rows)


def _suspects(frame: pl.DataFrame, rules: Sequence[_Rules]) -> Sequence[_Rules]:
    """Return the rules that rows may break; all if polars cannot evaluate one.

    pandera takes one column after the other, and for each it reads the types of all: 20 CPU seconds for 3,000 columns.
    """
    try:
        hold = frame.select(one.hold.alias(str(place)) for place, one in enumerate(rules))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return rules
    return [one for one, holds in zip(rules, hold.row(0), strict=True) if not holds] if rules else ()


def _compile(rules: _Rules) -> Callable[[pl.DataFrame], Sequence[Any]]:
    """Return the function from a frame to pandera's errors, one for each rule that rows break."""
    from pandera import config, errors
    from pandera import polars as pa

    def check(rule: _Rule) -> pa.Check:
        def passes(data: Any) -> pl.LazyFrame:
            return data.lazyframe.select(rule.passes)

        # One failure case is enough: `_violation` reads the failing rows from the check's output.
        return pa.Check(passes, name=rule.name, ignore_na=rule.nulls_pass, n_failure_cases=1)

    checks = [check(rule) for rule in rules.rules]
    if rules.column is None:
        schema = pa.DataFrameSchema({}, checks=checks)
    else:
        # Nullable for pandera, because pandera's own null check keeps every failing row in memory.
        # Without a type, because `check.py` has compared it.
        schema = pa.DataFrameSchema({rules.column: pa.Column(checks=checks, nullable=True)})

    def broken(frame: pl.DataFrame) -> Sequence[Any]:
        # Set the depth, because the environment can change it: by default even to "schema only".
        depth = config.ValidationDepth.SCHEMA_AND_DATA
        with config.config_context(validation_enabled=True, validation_depth=depth):
            try:
                schema.validate(frame, lazy=True)
            except errors.SchemaErrors as found:
                return found.schema_errors
        return ()

    return broken


def _rules_of(name: str, column: Column) -> tuple[_Rule, ...]:
    value = pl.col(_inside(name))
    rules: list[_Rule] = []
    if not column.nullable:
        rules.append(_Rule(name="null", passes=is_present(value, column), nulls_pass=False))
    if column.ge is not None or column.le is not None:
        rules.append(_Rule(name="out_of_range", passes=_in_range(value, column)))
    if column.isin is not None:
        rules.append(_Rule(name="unknown_category", passes=_text(value, column).is_in(list(column.isin))))
    if column.pattern is not None:
        rules.append(_Rule(name="pattern", passes=_text(value, column).str.contains(whole(column.pattern))))
    if column.min_length is not None or column.max_length is not None:
        rules.append(_Rule(name="length", passes=_in_length(value, column)))
    return tuple(rules)


def _not_repeated(name: str, columns: Sequence[str]) -> _Rule:
    return _Rule(name=name, passes=~pl.struct(columns).is_duplicated() | pl.col(columns[-1]).is_null())


def length_of(value: pl.Expr, column: Column) -> pl.Expr:
    """Return the characters of a string or the items of a list. Bytes were replaced by their number before."""
    if column.dtype == "string":
        return value.str.len_chars()
    return value if column.dtype == "binary" else value.list.len()


def _in_length(value: pl.Expr, column: Column) -> pl.Expr:
    length = length_of(value, column)
    low = length >= (column.min_length or 0)
    return low if column.max_length is None else low & (length <= column.max_length)


def _text(value: pl.Expr, column: Column) -> pl.Expr:
    return value.cast(pl.String) if column.dtype == "categorical" else value


def is_present(value: pl.Expr, column: Column) -> pl.Expr:
    """True for a value. A NaN is none, and a list or vector with a null or a NaN among its items is none."""
    if is_nested(column.dtype):
        lacks = pl.element().is_null()
        if "[float" in column.dtype:
            lacks = lacks | pl.element().is_nan()
        is_vector = column.dtype.startswith("array[")
        hole = value.arr.eval(lacks).arr.any() if is_vector else value.list.eval(lacks).list.any()
        return value.is_not_null() & ~hole.fill_null(value=False)
    return value.is_not_null() & value.is_not_nan() if column.dtype in FLOATS else value.is_not_null()


def _in_range(value: pl.Expr, column: Column) -> pl.Expr:
    dtype = polars_type(column.dtype)
    low, high = (
        None if bound is None else _literal(bound, column, dtype, up) for bound, up in _sides(column)
    )
    if low is not None and high is not None:
        inside = value.is_between(low, high)
    else:
        inside = value >= low if high is None else value <= high
    # A NaN is a missing value, so the rule for `nullable` checks it; polars treats it as the largest number.
    return inside | value.is_nan() if column.dtype in FLOATS and column.le is not None else inside


def _sides(column: Column) -> Iterator[tuple[Bound | None, bool]]:
    """Yield each bound, with True for the lower: the values that pass are above it."""
    low, high = column.bounds
    yield low, True
    yield high, False


def _literal(bound: Bound, column: Column, dtype: pl.DataType, up: bool) -> pl.Expr:
    """Return a bound in the type of its column; the next value inside the range if the type does not hold the bound.

    polars would round the bound, or compare both as float64.
    """
    if not isinstance(bound, int | float):
        return pl.lit(bound)
    exact = Decimal(str(bound))
    if column.dtype == "duration":
        return pl.lit(int(exact * 10**6))
    if isinstance(dtype, pl.Decimal):
        return pl.lit(exact)
    if dtype.is_integer():
        limits = np.iinfo(column.dtype)
        nearest = min(max(math.ceil(exact) if up else math.floor(exact), -(2**65)), 2**65)
        return pl.lit(nearest, dtype=dtype if limits.min <= nearest <= limits.max else pl.Int128)
    return pl.lit(_float_bound(exact, column.dtype, up), dtype=dtype)


def _float_bound(exact: Decimal, dtype: str, up: bool) -> float:
    kind = np.float64 if dtype == "float64" else np.float32
    with np.errstate(over="ignore"):
        nearest = kind(float(exact))
    # 0.1 as float32 is a little more than 0.1, but it is what a file with 0.1 holds.
    if Decimal(str(nearest)) == exact:
        return float(nearest)
    stored = Decimal(float(nearest))
    if (stored < exact) if up else (stored > exact):
        nearest = np.nextafter(nearest, kind(math.inf if up else -math.inf))
    return float(nearest)

"""Findings in words for broken rules: the measurement, the expectation, the rows, and the remedy.

Other modules decide which rows break a rule (`compiled_contract.py`, `check.py`); this module describes them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.data.validation.column_types import FLOATS, is_nested, schema_of
from ml_assets.data.validation.compiled_contract import Violation
from ml_assets.data.validation.contract import Column, Contract, ForeignKey
from ml_assets.data.validation.verdict import Finding

EXAMPLES = 5
"""Failing rows that a finding shows."""
VALUES = 4
"""Distinct failing values that a line names."""
LONGEST = 60
"""Characters of one value; longer values are cut."""
HIDDEN = "(hidden)"
"""Text in place of each value of a sensitive column."""


def explain_rows(frame: pl.DataFrame, contract: Contract, violation: Violation) -> Finding:
    """Return the finding for rows of one partition that break a rule of a column or of the primary key."""
    if violation.column is None:
        return _repeated(frame, contract, violation, list(contract.primary_key))
    if violation.rule == "duplicate_value":
        return _repeated(frame, contract, violation, [violation.column])
    if violation.rule == "condition":
        return _condition(frame, contract, violation)
    column = contract.by_name[violation.column]
    failing = shown(frame.get_column(violation.column).gather(violation.rows), contract)
    measured, limit, explanation = _WORDS[violation.rule](violation.column, column, failing)
    return Finding(
        rule=violation.rule,
        column=violation.column,
        measured=measured,
        limit=limit,
        failing_rows=len(violation.rows),
        examples=row_examples(frame, contract, violation.column, violation.rows),
        explanation=explanation,
    )


def row_examples(
    frame: pl.DataFrame, contract: Contract, column: str, rows: npt.NDArray[np.int64]
) -> tuple[str, ...]:
    """Describe the first failing rows with their primary key: `'ZZ' in row 12 (flight=1545, origin='EWR')`."""
    first = _examples(frame, contract, [column], rows)
    identity = _named(first, [name for name in contract.primary_key if name != column])
    return tuple(
        f"{value} in row {row}" + (f" ({who})" if who else "")
        for value, row, who in zip(texts(first[column]), rows, identity, strict=False)
    )


def _examples(
    frame: pl.DataFrame, contract: Contract, columns: Sequence[str], rows: npt.NDArray[np.int64]
) -> pl.DataFrame:
    """Return `columns` and the primary key of the first `rows`, with the values of sensitive columns hidden.

    Without the other columns: if each of 1,000 columns had a bad value, they took half a minute.
    """
    named = list(dict.fromkeys((*columns, *contract.primary_key)))
    return _masked(frame.select(named)[rows[:EXAMPLES]], contract)


def shown(values: pl.Series, contract: Contract) -> pl.Series:
    """Return the values of a column; if the contract hides them, `HIDDEN` in place of each. Nulls stay."""
    if not contract.hides(values.name):
        return values
    return pl.select(pl.when(values.is_not_null()).then(pl.lit(HIDDEN)).alias(values.name)).to_series()


def _masked(frame: pl.DataFrame, contract: Contract) -> pl.DataFrame:
    """Return the frame with the values of sensitive columns hidden."""
    return frame.with_columns(
        shown(frame[name], contract) for name in frame.columns if name in contract.by_name
    )


def texts(values: pl.Series) -> list[str]:
    """Format values for people: strings in quotes, times in ISO form, null."""
    if isinstance(values.dtype, pl.Date | pl.Datetime):
        # Formatted by polars: Python's datetime ends with the year 9999, and bad data holds later years.
        form = "%Y-%m-%d" if values.dtype == pl.Date else "%Y-%m-%dT%H:%M:%SZ"
        return values.dt.to_string(form).fill_null("null").to_list()
    try:
        return [_text(value) for value in values.to_list()]
    except pl.exceptions.PanicException:  # a time after the year 9999 inside a list or a struct
        return [f"a {values.dtype} that Python cannot hold"] * values.len()


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    text = repr(value) if isinstance(value, str) and value != HIDDEN else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _extent(values: pl.Series) -> str:
    low, high = texts(values.drop_nulls().sort().gather([0, -1]))
    return low if low == high else f"{low} to {high}"


def _named(rows: pl.DataFrame, columns: list[str]) -> list[str]:
    """Return per row: `origin='EWR', flight=1545`."""
    cells = [[f"{name}={text}" for text in texts(rows[name])] for name in columns]
    return [", ".join(row) for row in zip(*cells, strict=True)] if cells else [""] * rows.height


def _repeated(frame: pl.DataFrame, contract: Contract, violation: Violation, columns: list[str]) -> Finding:
    rows = frame.select(columns).with_row_index("row")[violation.rows]
    groups = rows.group_by(columns, maintain_order=True).agg(pl.col("row"))
    first = groups.head(EXAMPLES)
    examples = tuple(
        f"{who}: rows {', '.join(map(str, where[:3]))}"
        for who, where in zip(_named(_masked(first, contract), columns), first["row"].to_list(), strict=True)
    )
    what = ", ".join(columns)
    extra = rows.height - groups.height
    return Finding(
        rule=violation.rule,
        column=what,
        measured=f"{groups.height} values that occur more than once, in {rows.height} rows",
        limit=f"each ({what}) once" if len(columns) > 1 else f"each {what} once",
        failing_rows=rows.height,
        examples=examples,
        explanation=(
            f"{extra} rows repeat the {what} of another row of this partition. If the source delivers rows "
            "twice, drop the repetitions there; if these are different rows, `primary_key` lacks a column."
        ),
    )


def _null(name: str, column: Column, failing: pl.Series) -> tuple[str, str, str]:
    nulls = failing.null_count()
    others = failing.len() - nulls
    what = "with a null or NaN among its items" if is_nested(column.dtype) else "NaN"
    parts = [f"{count} {name}" for count, name in ((nulls, "null"), (others, what)) if count]
    return (
        " and ".join(parts),
        "a value in every row",
        f"The column {name!r} may not be empty. Fix the source, or set `nullable: true` for it if a missing "
        "value has a meaning.",
    )


def _out_of_range(name: str, column: Column, failing: pl.Series) -> tuple[str, str, str]:
    seconds = " seconds" if column.dtype == "duration" else ""
    unit = " Has the unit of the source changed?" if column.dtype in FLOATS else ""
    return (
        _extent(failing),
        _limits(column.ge, column.le, seconds),
        f"Values of {name!r} are outside their range.{unit} Fix the source, or widen `ge` and `le` in the "
        "contract.",
    )


def _limits(low: object, high: object, unit: str = "") -> str:
    limits = [("at least", low), ("at most", high)]
    return " and ".join(f"{words} {limit}{unit}" for words, limit in limits if limit is not None)


def _unknown_category(name: str, column: Column, failing: pl.Series) -> tuple[str, str, str]:
    known = sorted(map(str, column.isin or ()))
    limit = f"one of {', '.join(known)}" if len(known) <= 12 else f"one of {len(known)} values"
    found = _most_frequent(failing)
    return (
        found,
        limit,
        f"{found} is not among the {len(known)} values of {name!r} in the contract. If it is correct, add it "
        f"to `isin`; otherwise fix the source.",
    )


def _length(name: str, column: Column, failing: pl.Series) -> tuple[str, str, str]:
    unit = {"string": "characters", "binary": "bytes"}.get(column.dtype, "items")
    return (
        f"{failing.len()} values of another length",
        f"{_limits(column.min_length, column.max_length)} {unit}",
        f"Values of {name!r} are too short or too long. Fix the source, or change `min_length` and `max_length` in the "
        "contract.",
    )


def _pattern(name: str, column: Column, failing: pl.Series) -> tuple[str, str, str]:
    return (
        _most_frequent(failing),
        f"matches {column.pattern}",
        f"Values of {name!r} do not match `pattern`. Fix the source, or change `pattern` in the contract.",
    )


def _most_frequent(failing: pl.Series) -> str:
    counts = failing.alias("value").value_counts(sort=True, name="n")
    first = counts.head(VALUES)
    shown = [
        f"{text} ({n} {'row' if n == 1 else 'rows'})"
        for text, n in zip(texts(first["value"]), first["n"].to_list(), strict=True)
    ]
    more = counts.height - VALUES
    return ", ".join(shown) + (f" and {more} other values" if more > 0 else "")


_WORDS: dict[str, Callable[[str, Column, pl.Series], tuple[str, str, str]]] = {
    "null": _null,
    "out_of_range": _out_of_range,
    "unknown_category": _unknown_category,
    "pattern": _pattern,
    "length": _length,
}


def _condition(frame: pl.DataFrame, contract: Contract, violation: Violation) -> Finding:
    condition = next(one for one in contract.conditions if one.name == violation.column)
    first = _examples(frame, contract, condition.columns, violation.rows)
    values = _named(first, list(condition.columns))
    identity = _named(first, [name for name in contract.primary_key if name not in condition.columns])
    why = f" ({condition.description.rstrip('.')})" if condition.description else ""
    return Finding(
        rule="condition",
        column=", ".join(condition.columns),
        measured=f"{len(violation.rows)} rows in which it is false",
        limit=f"{condition.name}: {condition.expression}",
        failing_rows=len(violation.rows),
        examples=tuple(
            f"{said} in row {row}" + (f" ({who})" if who else "")
            for said, row, who in zip(values, violation.rows, identity, strict=False)
        ),
        explanation=(
            f"Rows break the condition {condition.name}{why}. Fix the source, or change `conditions` in the contract."
        ),
    )


def explain_null_share(name: str, column: Column, nulls: int, rows: int) -> Finding:
    """Return the finding for a partition in which too many rows have no value in a column."""
    return Finding(
        rule="null_share",
        column=name,
        measured=f"{nulls / rows:.2%} of the rows without a value",
        limit=f"at most {column.max_null_share or 0:.2%}",
        failing_rows=nulls,
        explanation=(
            f"{nulls} of {rows} rows have no value of {name!r}. Check that the source was complete; if so many are "
            "usual, raise `max_null_share` in the contract."
        ),
    )


def explain_times(
    frame: pl.DataFrame, contract: Contract, column: str, rule: str, rows: npt.NDArray[np.int64], limit: str
) -> Finding:
    """Return the finding for event times in the future or outside their partition. `rows`: positions, ascending."""
    failing = frame.get_column(column).gather(rows)
    where = {
        "future_event": "in the future",
        "event_outside_partition": "outside the days of this partition",
    }[rule]
    return Finding(
        rule=rule,
        column=column,
        measured=_extent(failing),
        limit=limit,
        failing_rows=len(rows),
        examples=row_examples(frame, contract, column, rows),
        explanation=(
            f"{len(rows)} of {frame.height} rows have {column!r} {where}. Check the clock and the time zone "
            f"of the source, and the days that it returns for this partition."
        ),
    )


def explain_foreign_key(
    frame: pl.DataFrame, contract: Contract, key: ForeignKey, rows: npt.NDArray[np.int64]
) -> Finding:
    """Return the finding for rows whose values of a foreign key do not exist in its table."""
    columns = list(key.columns)
    masked = _masked(frame.select(columns)[rows], contract)
    distinct = _named(masked.unique(maintain_order=True).head(VALUES), columns)
    others = [name for name in contract.primary_key if name not in columns]
    identity = _named(_examples(frame, contract, columns, rows), others)
    values = _named(masked.head(EXAMPLES), columns)
    return Finding(
        rule="foreign_key",
        column=", ".join(columns),
        measured=f"{', '.join(distinct)} in {len(rows)} rows",
        limit=f"a row of {key.table} with this {', '.join(key.named)}",
        failing_rows=len(rows),
        examples=tuple(
            f"{said} in row {row}" + (f" ({who})" if who else "")
            for said, row, who in zip(values, rows, identity, strict=False)
        ),
        explanation=(
            f"Values of {', '.join(columns)} are not in {key.table}. If they are right, that table lacks rows: "
            "materialize it again, then this partition; otherwise fix the source."
        ),
    )


def explain_no_table(key: ForeignKey, why: str) -> Finding:
    """Return the finding for a foreign key whose table has no rows for this partition that may be used: `why`."""
    return Finding(
        rule="foreign_key",
        column=", ".join(key.columns),
        measured=why,
        limit=f"rows of {key.table} with {', '.join(key.named)}",
        explanation=(
            f"No row can be looked up in {key.table}: {why}. Materialize {key.table} first, or correct it, then this "
            "partition again. It has the same cadence, or no partitions."
        ),
    )


def explain_other_types(key: ForeignKey, mine: pl.DataFrame, theirs: pl.DataFrame) -> Finding:
    """Return the finding for a foreign key whose columns have other types than the columns of its table."""
    return Finding(
        rule="foreign_key",
        column=", ".join(key.columns),
        measured=", ".join(dict(schema_of(mine)).values()),
        limit=f"{', '.join(dict(schema_of(theirs)).values())}, the types of {', '.join(key.named)} in {key.table}",
        explanation="Columns of a foreign key have the types of the columns to which they refer: change a contract.",
    )

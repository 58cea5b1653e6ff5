"""Contract of a table: its columns, their types and ranges, its primary key and its event time.

A pydantic section of `defs.yaml`; unknown keys are errors. `check.py` validates data by it.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Self, cast

import polars as pl
from pydantic import Field, model_validator

from ml_assets.data.validation.column_types import (
    NUMERIC,
    Schema,
    TypeName,
    is_decimal,
    is_nested,
    polars_type,
    schema_hash,
    schema_of,
    type_name,
)
from ml_assets.foundation.sections import Section, TimeZone

Bound = int | Annotated[float, Field(allow_inf_nan=False)] | datetime | date
"""Bound of a range. YAML reads a day or a moment without quotes as such."""
_LARGEST = sys.float_info.max
_LATER_RULES = ("min_length", "max_length", "max_null_share")
"""Rules that change a contract's digest only if they are set, so that tables without them do not become stale."""


class Condition(Section):
    """A rule over several columns of a row."""

    name: Annotated[str, Field(pattern=r"^[a-z]\w*$")]
    """Name in findings, such as `arrives_after_departure`."""
    expression: str
    """SQL expression of polars over columns of the contract, true for a good row: `arrival >= departure`. Null passes,
    and a NaN in a column counts as null. The expression sees one row alone."""
    description: str = Field(default="", examples=["Nobody arrives before leaving."])
    """Text for people; not part of the contract's digest."""

    @cached_property
    def parsed(self) -> pl.Expr:
        """The expression. Raises `ValueError` if polars cannot parse it."""
        try:
            return pl.sql_expr(self.expression)
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"condition {self.name}: {error}; write an SQL expression of polars") from error

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it reads, in the order in which it names them."""
        return tuple(dict.fromkeys(self.parsed.meta.root_names()))

    def require_for(self, columns: Mapping[str, "Column"]) -> None:
        """Raise `ValueError` unless the expression is a boolean per row of a table with these columns."""
        who = f"condition {self.name} ({self.expression})"
        if unknown := [name for name in self.columns if name not in columns]:
            raise ValueError(f"{who} reads {unknown[0]!r}, which is not a column of the contract")
        if not self.columns:
            raise ValueError(f"{who} reads no column of the contract")
        if _mixes_rows(json.loads(self.parsed.meta.serialize(format="json"))):
            raise ValueError(f"{who} compares rows with each other: a condition sees one row alone")
        empty = pl.DataFrame(schema={name: polars_type(one.dtype) for name, one in columns.items()})
        try:
            dtype = empty.select(self.parsed.alias("holds")).schema["holds"]
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{who} cannot be evaluated: {error}") from error
        if dtype != pl.Boolean:
            raise ValueError(f"{who} is {type_name(dtype)}, not true or false: compare something")


def _mixes_rows(part: Any) -> bool:
    """True if an expression, as JSON of polars, reads other rows: an aggregation, a window or the number of rows."""
    if isinstance(part, dict):
        tree = cast("dict[str, Any]", part)
        return any(name in ("Agg", "Over") or _mixes_rows(inside) for name, inside in tree.items())
    if isinstance(part, list):
        return any(map(_mixes_rows, cast("list[Any]", part)))
    return part == "Len"


class ForeignKey(Section):
    """Columns whose values must exist in another table. A row with a null among them passes."""

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """Columns of this table."""
    table: Annotated[str, Field(pattern=r"^(datasets|features)/\w+$")]
    """`datasets/<name>` or `features/<name>`, without partitions, or with the same partitions: then the same partition
    is looked at."""
    references: tuple[str, ...] = ()
    """Columns of that table, in the same order. Not given: columns of the same names."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.references and len(self.references) != len(self.columns):
            raise ValueError(
                f"foreign key to {self.table}: {len(self.columns)} columns and {len(self.references)} references: name "
                "one for each"
            )
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """Columns of the other table."""
        return self.references or self.columns


class Column(Section):
    """One column, or several that share everything but their name."""

    name: str | None = None
    """The column. Give `name` or `names`."""
    names: tuple[str, ...] = ()
    """Several columns with the same rules."""
    dtype: TypeName
    """`int64`, `float32`, `string`, `date`, `datetime` (microseconds in UTC), … : see `column_types.polars_type`."""
    nullable: bool = False
    """Allow nulls; if false, a null breaks the rule. A NaN counts as a null, here and in `ge` and `le`."""
    ge: Bound | None = None
    """Smallest legal value of a number, date, datetime or duration (in seconds)."""
    le: Bound | None = None
    """Largest legal value."""
    isin: tuple[str | int | bool, ...] | None = None
    """All legal values. Nulls are left to `nullable`."""
    pattern: str | None = None
    """Regular expression (Rust syntax) that the whole string matches."""
    min_length: Annotated[int, Field(ge=0)] | None = None
    """Fewest characters of a string, bytes of a binary or items of a list."""
    max_length: Annotated[int, Field(ge=0)] | None = None
    """Most characters, bytes or items."""
    max_null_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    """Largest share of a partition's rows without a value, for a column with `nullable: true`."""
    unique: bool = False
    """No value occurs twice in a partition; nulls do not count."""
    sensitive: bool = False
    """Keep the column's values in the table's files: profiles, findings, logs and reports show none."""
    description: str = ""
    """Text for people; not part of the contract's digest."""

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        if (self.name is None) == (not self.names):
            raise ValueError("a column needs either `name` or `names`")
        who = ", ".join(self.all_names)
        reserved = [name for name in self.all_names if not name or name.startswith("_")]
        if reserved:
            raise ValueError(f"'{reserved[0]}': a column needs a name that does not begin with _")
        self._check_range(who)
        self._check_lengths(who)
        if self.max_null_share is not None and not self.nullable:
            raise ValueError(
                f"{who}: `max_null_share` without `nullable: true`: a null breaks the rule already; set `nullable`"
            )
        if self.unique and (self.dtype == "binary" or is_nested(self.dtype)):
            raise ValueError(
                f"{who}: `unique` is not for {self.dtype}: add a column with the identity of the value and make that "
                "unique"
            )
        if self.isin is not None:
            self._check_categories(who)
        if self.pattern is not None:
            self._check_pattern(who, self.pattern)
        return self

    @property
    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """`ge` and `le` in the type of the column: a date, a moment (a date is its midnight in UTC), or a number."""
        return self._bound("ge", self.ge), self._bound("le", self.le)

    def _bound(self, name: str, value: Bound | None) -> Bound | None:
        if value is None:
            return None
        who = f"{', '.join(self.all_names)}: `{name}` {value}"
        if self.dtype == "date":
            if isinstance(value, datetime) and value.time() == time() and value.tzinfo is None:
                return value.date()
            if type(value) is not date:
                raise ValueError(f"{who} of a date column has to be a date such as 2013-01-31")
        elif self.dtype == "datetime":
            if type(value) is date:
                return datetime.combine(value, time(), UTC)
            if not isinstance(value, datetime):
                raise ValueError(
                    f"{who} of a datetime column has to be a moment such as 2013-01-31T12:00:00Z"
                )
            if value.tzinfo is None:
                raise ValueError(f"{who} has no time zone: add Z for UTC")
        elif isinstance(value, date):
            raise ValueError(f"{who} of a {self.dtype} column has to be a number")
        elif self.dtype == "duration" and (Decimal(str(value)) * 10**6) % 1:
            raise ValueError(f"{who} is more precise than microseconds, which a duration has")
        elif abs(value) > _LARGEST:
            raise ValueError(f"{who} is outside the range of every type")
        return value

    def _check_range(self, who: str) -> None:
        if self.ge is None and self.le is None:
            return
        is_number = self.dtype in NUMERIC or self.dtype == "duration" or is_decimal(self.dtype)
        if not is_number and self.dtype not in ("date", "datetime"):
            raise ValueError(
                f"{who}: `ge` and `le` are for numbers, dates, datetimes and durations, not for {self.dtype}"
            )
        low, high = self.bounds
        if low is not None and high is not None and low > high:  # pyright: ignore[reportOperatorIssue] - of one type
            nothing = "number" if is_number else "value"
            raise ValueError(f"{who}: `ge` {self.ge} is larger than `le` {self.le}: no {nothing} would pass")

    def _check_lengths(self, who: str) -> None:
        if self.min_length is None and self.max_length is None:
            return
        if self.dtype not in ("string", "binary") and not self.dtype.startswith("list["):
            raise ValueError(
                f"{who}: `min_length` and `max_length` are for strings, binaries and lists, not for {self.dtype}"
            )
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"{who}: `min_length` {self.min_length} is larger than `max_length` {self.max_length}: no value would "
                "pass"
            )

    def _check_categories(self, who: str) -> None:
        legal = {"string": str, "categorical": str, "bool": bool}.get(self.dtype, int)
        if self.dtype not in NUMERIC | {"string", "categorical", "bool"} or self.dtype.startswith("float"):
            raise ValueError(
                f"{who}: `isin` is for strings, whole numbers and booleans, not for {self.dtype}"
            )
        if not self.isin:
            raise ValueError(f"{who}: `isin` without a value would reject every row")
        wrong = [value for value in self.isin if type(value) is not legal]
        if wrong:
            raise ValueError(
                f"{who}: `isin` of a {self.dtype} column holds {wrong[0]!r}; quote strings in YAML"
            )

    def _check_pattern(self, who: str, pattern: str) -> None:
        if self.dtype not in ("string", "categorical"):
            raise ValueError(f"{who}: `pattern` is for strings, not for {self.dtype}")
        # Try both: only the first refuses `a)|(?:b`, only the second a comment at the end that hides the closing `)`.
        for expression in (pattern, whole(pattern)):
            try:
                pl.Series([""]).str.contains(expression)
            except pl.exceptions.ComputeError as error:
                why = next(
                    (line for line in str(error).splitlines() if line.startswith("error: ")), str(error)
                )
                raise ValueError(
                    f"{who}: `pattern` {pattern!r} is not a regular expression: {why.removeprefix('error: ')}"
                ) from error

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return `names`, or `name` as a tuple."""
        return self.names if self.name is None else (self.name,)

    @property
    def meaning(self) -> dict[str, Any]:
        """Rules of the column as JSON values, equal for columns with equal rules. Unset rules are left out."""
        facts = self.model_dump(mode="json", exclude={"names", "description"})
        for bound, value in zip(("ge", "le"), self.bounds, strict=True):
            if isinstance(value, date):
                facts[bound] = value.isoformat()
            elif isinstance(facts[bound], float) and facts[bound].is_integer():
                facts[bound] = int(facts[bound])
        if self.isin is not None:
            facts["isin"] = sorted(set(self.isin))
        return {name: value for name, value in facts.items() if value is not None or name not in _LATER_RULES}

    def apart(self) -> list["Column"]:
        """Return one column per name."""
        return [self.model_copy(update={"name": name, "names": ()}) for name in self.all_names]


def whole(pattern: str) -> str:
    """Return a regular expression that matches only if `pattern` matches the whole string."""
    return f"^(?:{pattern})$"


class Contract(Section):
    """The whole promise of one table."""

    columns: tuple[Column, ...]
    """All columns, in the order in which they are stored."""
    primary_key: tuple[str, ...] = ()
    """Columns that together identify a row: never null, no combination twice in a partition."""
    conditions: tuple[Condition, ...] = ()
    """Rules over several columns of a row."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    """Columns whose values must exist in other tables."""
    event_time: str | None = Field(default=None, examples=["sold_at"])
    """Column of type `datetime` or `date` with the time of a row's event. It must be inside the partition's days."""
    event_time_zone: TimeZone = "UTC"
    """Time zone whose midnight begins and ends a partition's day. Hours are hours of UTC: there it is the local time by
    which `volume` compares their numbers of rows."""
    event_slack_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Hours by which an event may be earlier or later than the days of its partition."""
    max_future_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 1.0
    """Hours by which an event may be later than the moment of the check; null allows any time."""

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        columns = [column for group in self.columns for column in group.apart()]
        by_name = {column.name: column for column in columns}
        if not columns:
            raise ValueError("a contract needs at least one column")
        if len(by_name) < len(columns):
            names = [column.name for column in columns]
            twice = sorted({str(name) for name in names if names.count(name) > 1})
            raise ValueError(f"declared twice: {', '.join(twice)}")
        for name in (*self.primary_key, *([self.event_time] if self.event_time else [])):
            if name not in by_name:
                raise ValueError(
                    f"{name!r} is in `primary_key` or `event_time` but is not a column of the contract"
                )
        self._check_keys(by_name)
        for condition in self.conditions:
            condition.require_for({str(name): column for name, column in by_name.items()})
        names = [condition.name for condition in self.conditions]
        if len(set(names)) < len(names):
            raise ValueError(f"conditions with one name: {', '.join(names)}: rename all but one")
        nullable = [name for name in self.primary_key if by_name[name].nullable]
        if nullable:
            raise ValueError(f"a column of `primary_key` cannot be nullable: {', '.join(nullable)}")
        if self.event_time and by_name[self.event_time].dtype not in ("datetime", "date"):
            raise ValueError(f"`event_time` {self.event_time!r} must be of type datetime or date")
        if self.event_time and by_name[self.event_time].sensitive:
            raise ValueError(
                f"`event_time` {self.event_time!r} cannot be sensitive: manifests show its first and last value"
            )
        return self

    def _check_keys(self, by_name: Mapping[str | None, Column]) -> None:
        for name in self.primary_key:
            dtype = by_name[name].dtype
            if dtype == "binary" or is_nested(dtype):
                raise ValueError(f"a column of `primary_key` cannot be {dtype}: {name}")
        for key in self.foreign_keys:
            for name in key.columns:
                if name not in by_name:
                    raise ValueError(
                        f"foreign key to {key.table} names {name!r}, which is not a column of the contract"
                    )
                if by_name[name].dtype == "binary" or is_nested(by_name[name].dtype):
                    raise ValueError(f"a column of a foreign key cannot be {by_name[name].dtype}: {name}")

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Name → column, in stored order, with one column per name of `names`."""
        return {column.all_names[0]: column for group in self.columns for column in group.apart()}

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in stored order."""
        return tuple(self.by_name)

    def hides(self, name: str) -> bool:
        """True if values of column `name` must not be shown: the column is sensitive.

        If the contract has a sensitive column, this is also True for unknown columns, because a sensitive column may
        have been renamed.
        """
        column = self.by_name.get(name)
        return any(one.sensitive for one in self.by_name.values()) if column is None else column.sensitive

    @property
    def stored_schema(self) -> Schema:
        """(name, type name) of the columns, in stored order."""
        return tuple((name, column.dtype) for name, column in self.by_name.items())

    @cached_property
    def schema_hash(self) -> str:
        """SHA-256 of ordered names and types."""
        return schema_hash(self.stored_schema)

    @cached_property
    def contract_digest(self) -> str:
        """SHA-256 of every rule, 64 hex digits: equal for contracts with equal rules.

        Descriptions, the grouping of columns, the order of `isin`, and `1` against `1.0` do not change it.
        """
        facts: dict[str, Any] = self.model_dump(
            mode="json", exclude={"columns", "conditions", "foreign_keys"}
        )
        if self.conditions:
            facts["conditions"] = sorted([one.name, one.expression] for one in self.conditions)
        if self.foreign_keys:
            facts["foreign_keys"] = sorted([one.table, one.columns, one.named] for one in self.foreign_keys)
        facts["columns"] = [column.meaning for column in self.by_name.values()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.contract_digest)

    def in_order(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with its columns in stored order; unchanged if they are not exactly the contract's."""
        if set(frame.columns) == set(self.names) and tuple(frame.columns) != self.names:
            return frame.select(self.names)
        return frame


@dataclass(frozen=True, kw_only=True)
class SchemaDrift:
    """Differences of a frame's columns from a contract's. Order does not count: `Contract.in_order` mends it."""

    added: tuple[tuple[str, str], ...] = ()
    """(name, type name) that only the frame has."""
    removed: tuple[tuple[str, str], ...] = ()
    """(name, type name) that only the contract has."""
    changed: tuple[tuple[str, str, str], ...] = ()
    """(name, type name expected, type name found)."""

    def __bool__(self) -> bool:
        """True if anything differs."""
        return bool(self.added or self.removed or self.changed)


def schema_drift(
    expected: Contract | Sequence[tuple[str, str]], frame: pl.DataFrame | pl.LazyFrame
) -> SchemaDrift:
    """Compare names and types with a contract or with another (stored) schema."""
    wanted = dict(expected.stored_schema if isinstance(expected, Contract) else expected)
    found = dict(schema_of(frame))
    return SchemaDrift(
        added=tuple((name, dtype) for name, dtype in found.items() if name not in wanted),
        removed=tuple((name, dtype) for name, dtype in wanted.items() if name not in found),
        changed=tuple(
            (name, dtype, found[name])
            for name, dtype in wanted.items()
            if name in found and found[name] != dtype
        ),
    )

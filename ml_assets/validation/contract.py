"""Contract of a table: its columns, their types and ranges, its primary key and its event time.

A pydantic section of `defs.yaml`; unknown keys are errors. `check.py` validates data by it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self

import polars as pl
from pydantic import Field, model_validator

from ml_assets.sections import Section, TimeZone
from ml_assets.validation.column_types import NUMERIC, Schema, TypeName, schema_hash, schema_of


class Column(Section):
    """One column, or several that share everything but their name."""

    name: str | None = None
    """The column. Give `name` or `names`."""
    names: tuple[str, ...] = ()
    """Several columns with the same rules."""
    dtype: TypeName
    """`datetime` means microseconds in UTC."""
    nullable: bool = False
    """Allow nulls; if false, a null breaks the rule. A NaN counts as a null, here and in `ge` and `le`."""
    ge: int | float | None = None
    """Smallest legal number."""
    le: int | float | None = None
    """Largest legal number."""
    isin: tuple[str | int | bool, ...] | None = None
    """All legal values. Nulls are left to `nullable`."""
    pattern: str | None = None
    """Regular expression (Rust syntax) that the whole string matches."""
    unique: bool = False
    """No value occurs twice in a partition; nulls do not count."""
    stationary: bool = False
    """A drift of this column blocks; where false it warns."""
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
        if self.stationary:
            raise ValueError(
                f"{who}: `stationary` is not supported yet, and no check looks for drift: leave it out"
            )
        if (self.ge is not None or self.le is not None) and self.dtype not in NUMERIC:
            raise ValueError(f"{who}: `ge` and `le` are for numbers, not for {self.dtype}")
        if self.ge is not None and self.le is not None and self.ge > self.le:
            raise ValueError(f"{who}: `ge` {self.ge} is larger than `le` {self.le}: no number would pass")
        if self.unique and self.dtype == "binary":
            raise ValueError(
                f"{who}: `unique` is not for binary: add a column with the identity of the bytes and make that unique"
            )
        if self.isin is not None:
            self._check_categories(who)
        if self.pattern is not None:
            self._check_pattern(who, self.pattern)
        return self

    def _check_categories(self, who: str) -> None:
        legal = {"string": str, "bool": bool}.get(self.dtype, int)
        if self.dtype not in NUMERIC | {"string", "bool"} or self.dtype.startswith("float"):
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
        if self.dtype != "string":
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
        """Rules of the column as JSON values, equal for columns with equal rules."""
        facts = self.model_dump(mode="json", exclude={"names", "description"})
        for bound in ("ge", "le"):
            if isinstance(facts[bound], float) and facts[bound].is_integer():
                facts[bound] = int(facts[bound])
        if self.isin is not None:
            facts["isin"] = sorted(set(self.isin))
        return facts

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
    event_time: str | None = None
    """Column of type `datetime` or `date` with the time of a row's event. It must be inside the partition's days."""
    event_time_zone: TimeZone = "UTC"
    """Time zone whose midnight begins and ends a partition's day."""
    event_slack_hours: Annotated[float, Field(ge=0)] = 0.0
    """Hours by which an event may be earlier or later than the days of its partition."""
    max_future_hours: Annotated[float, Field(ge=0)] | None = 1.0
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
        binary = [name for name in self.primary_key if by_name[name].dtype == "binary"]
        if binary:
            raise ValueError(f"a column of `primary_key` cannot be binary: {', '.join(binary)}")
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
        facts: dict[str, Any] = self.model_dump(mode="json", exclude={"columns"})
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

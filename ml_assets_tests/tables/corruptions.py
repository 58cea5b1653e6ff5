"""Ten ways to spoil a day of any table, and which rule must name each."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import polars as pl


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a table that corruptions need."""

    category: str
    event_time: str
    required_number: str
    other_table: pl.DataFrame


Spoil = Callable[[pl.DataFrame, Columns], pl.DataFrame]

TEN_WAYS: dict[str, tuple[str, Spoil]] = {
    "missing column": ("missing_column", lambda f, c: f.drop(c.category)),
    "wrong type": ("wrong_type", lambda f, c: f.with_columns(pl.col(c.required_number).cast(pl.Float32))),
    "unknown category": (
        "unknown_category",
        lambda f, c: f.with_columns(
            pl.when(pl.int_range(pl.len()) < 3).then(pl.lit("ZZ")).otherwise(c.category).alias(c.category)
        ),
    ),
    "duplicate keys": ("duplicate_primary_key", lambda f, c: pl.concat([f, f.head(4)])),
    "half the rows": ("volume", lambda f, c: f.head(f.height // 2)),
    "future event times": (
        "future_event",
        lambda f, c: f.with_columns(pl.col(c.event_time) + timedelta(days=36_500)),
    ),
    "an empty day": ("empty_partition", lambda f, c: f.clear()),
    "nulls": (
        "null",
        lambda f, c: f.with_columns(
            pl.when(pl.int_range(pl.len()) % 7 > 0).then(c.required_number).alias(c.required_number)
        ),
    ),
    "strings for numbers": (
        "wrong_type",
        lambda f, c: f.with_columns(pl.col(c.required_number).cast(pl.String)),
    ),
    "another table's file": ("another_table", lambda f, c: c.other_table),
}
"""Name → (rule that must be named, how to spoil a day)."""

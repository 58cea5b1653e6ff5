"""Comparison of a partition's row count with the counts of its predecessors.

The history comes from the ledger (`volumes`): row counts of partitions that passed.
"""

import statistics
from collections.abc import Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ml_assets.sections import Section
from ml_assets.validation.findings import Finding


class VolumeRule(Section):
    """Allowed distance of the number of rows from the usual one."""

    kind: Literal["same_weekday_median", "previous", "none"] = "same_weekday_median"
    """Compare with the median of the last partitions of the same weekday, with the partition before, or not at all.

    On a table with days, holidays and weekends make `previous` fire about ten times as often. On a weekly or monthly
    table, the median is over the last weeks or months; on an hourly one, over the same hour of that weekday."""
    warn: Annotated[float, Field(gt=0)] = 0.2
    """A deviation above this share warns."""
    block: Annotated[float, Field(gt=0)] = 0.45
    """A deviation above this share blocks."""
    min_history: Annotated[int, Field(ge=1)] = 4
    """Number of partitions of the same weekday in the median. With fewer, no deviation is checked."""
    allow_empty: bool = False
    """Allow a partition without rows."""

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        if self.warn > self.block:
            raise ValueError(
                f"`warn` {self.warn:g} is larger than `block` {self.block:g}: no deviation would only warn. "
                f"Make `warn` the smaller"
            )
        return self


def _switched_off(value: Any) -> Any:
    # YAML reads an unquoted off as false.
    return {"kind": "none", "allow_empty": True} if value is False or value == "off" else value


VolumeSection = Annotated[
    VolumeRule,
    BeforeValidator(_switched_off, json_schema_input_type=VolumeRule | Literal["off", False]),
]
"""A rule, or `off`: any number of rows passes, also zero."""


def volume_finding(
    key: str, rows: int, history: Mapping[str, int], rule: VolumeRule, *, monthly: bool = False
) -> Finding | None:
    """Return the finding about a partition's row count; None if the count is usual or there is too little history.

    `history` is partition key → row count of partitions that passed. Only keys before `key` count; for a table without
    partitions, the version before. An empty partition blocks unless the rule allows it.
    """
    if rows == 0:
        return None if rule.allow_empty else _empty(key)
    if rule.kind == "none":
        return None
    usual, what = _usual(key, history, rule, monthly=monthly)
    if not usual:
        return None
    deviation = rows / usual - 1
    if abs(deviation) <= rule.warn:
        return None
    blocks = abs(deviation) > rule.block
    allowed = rule.block if blocks else rule.warn
    helps = (
        "Check that the source was complete. If the number is right, accept the partition."
        if blocks
        else "It passes. If no holiday explains the number, check the source."
    )
    more_or_fewer = f"{abs(deviation):.0%} {'more' if deviation > 0 else 'fewer'}"
    return Finding(
        rule="volume",
        severity="block" if blocks else "warn",
        measured=f"{rows:,} rows, {deviation:+.0%} against {usual:,.10g}",
        limit=f"±{allowed:.0%} of {what}",
        explanation=f"{rows:,} rows are {more_or_fewer} than {usual:,.10g}, {what}. {helps}",
    )


def volume_findings(
    rows: Mapping[str, int], history: Mapping[str, int], rule: VolumeRule, *, monthly: bool = False
) -> dict[str, Finding]:
    """Return partition key → finding, for partitions that have one.

    Goes through `rows` in the order of keys: a backfill compares each day with the days before it, also with days of
    the same backfill, but not with days that block. Leave partitions that other rules reject out of `rows`: a broken
    day says nothing about the days after it.
    """
    known, found = dict(history), dict[str, Finding]()
    for key in sorted(rows):
        finding = volume_finding(key, rows[key], known, rule, monthly=monthly)
        if finding is not None:
            found[key] = finding
        if finding is None or not finding.blocks:
            known[key] = rows[key]
    return found


def _empty(key: str) -> Finding:
    return Finding(
        rule="empty_partition",
        measured="0 rows",
        limit="at least one row",
        explanation=(
            f"The source returned no rows for {key}. Materialize it again when the source has rows, or set "
            f"`allow_empty: true` for this table if a partition may be empty."
        ),
    )


def _usual(key: str, history: Mapping[str, int], rule: VolumeRule, *, monthly: bool) -> tuple[float, str]:
    """Return the usual row count and its name; 0 if there is too little history."""
    today = _as_date(key)
    if today is None:
        return history.get(key, 0), "the version before it"
    # Days without rows are legal if they passed, and say nothing about other days.
    # Before its cadence changed, a table may have had days in place of hours.
    past = {
        day: rows
        for day, rows in ((_as_date(other), n) for other, n in history.items())
        if rows and day and type(day) is type(today)
    }
    if rule.kind == "previous":
        before = max((day for day in past if day < today), default=None)
        return (past[before], f"the partition before it, {before}") if before else (0, "")
    same = sorted(day for day in past if day < today and (monthly or _is_alike(day, today)))
    last = same[-rule.min_history :]
    if len(last) < rule.min_history:
        return 0, ""
    median = statistics.median(past[day] for day in last)
    hour = f" at {today:%H}:00 UTC" if isinstance(today, datetime) else ""
    return (
        median,
        f"the median of the last {rule.min_history} {'months' if monthly else f'{today:%A}s{hour}'}",
    )


def _is_alike(day: date, today: date) -> bool:
    if isinstance(day, datetime) and isinstance(today, datetime) and day.hour != today.hour:
        return False
    return day.weekday() == today.weekday()


@lru_cache(maxsize=100_000)
def _as_date(key: str) -> date | None:
    """Return the day in a key, or its hour as a `datetime`; None for a table without partitions."""
    try:
        return datetime.fromisoformat(key) if "T" in key else date.fromisoformat(key)
    except ValueError:
        return None

"""Division of a partition into rows that keep the contract and rows to set aside.

Here: the section of `defs.yaml`, the choice of rows and the sentences. Not here: storing the rows (`tables.publish`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from ml_assets.data.validation.check import BrokenRule
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.explain import EXAMPLES, row_examples
from ml_assets.data.validation.verdict import Finding
from ml_assets.foundation.sections import Section

OnBadRows = Literal["reject", "quarantine"]

RULE, COLUMN, REASON = "_rule", "_column", "_reason"
"""Columns of a quarantined row: the first broken rule, its column, and all broken rules in words. No contract can
name them, because its columns do not begin with an underscore."""

QUARANTINED, OVER_LIMIT = "quarantined", "quarantine_limit"
UNDATED_RULE = "undated"
_ONCE = {"duplicate_primary_key", "duplicate_value"}


class QuarantineSection(Section):
    """Limit of the rows that are set aside."""

    limit: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.005
    """Largest share of a partition's rows. With more bad rows the whole partition is rejected."""


Choice = tuple[Finding, npt.NDArray[np.int64]]
"""A finding, and the positions of the rows that it sets aside, ascending."""


@dataclass(frozen=True, slots=True)
class Share:
    """Limit of a quarantine, and the rows of which it is a share."""

    limit: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class Division:
    """A partition whose bad rows can be set aside."""

    keep: npt.NDArray[np.bool_]
    """True for each row that stays."""
    choices: tuple[Choice, ...]

    @property
    def bad(self) -> int:
        """Number of rows to set aside."""
        return len(self.keep) - int(self.keep.sum())

    def bad_rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the partition `frame` to set aside, with `RULE`, `COLUMN` and `REASON`."""
        positions = np.flatnonzero(~self.keep)
        first: list[tuple[str, str]] = [("", "")] * len(positions)
        reasons: list[list[str]] = [[] for _ in range(len(positions))]
        for finding, rows in self.choices:
            where = f" of {finding.column}" if finding.column else ""
            places: list[int] = np.searchsorted(positions, rows).tolist()
            for place in places:
                if not reasons[place]:
                    first[place] = (finding.rule, finding.column or "")
                reasons[place].append(f"{finding.rule}{where}: expected {finding.limit}")
        return frame[positions].with_columns(
            pl.Series(RULE, [rule for rule, _ in first], dtype=pl.String),
            pl.Series(COLUMN, [column for _, column in first], dtype=pl.String),
            pl.Series(REASON, ["; ".join(one) for one in reasons], dtype=pl.String),
        )


def divide(frame: pl.DataFrame, contract: Contract, broken: Sequence[BrokenRule]) -> Division | None:
    """Return the division of `frame`; None if no row is bad or a blocking finding is not about rows.

    `frame` has its columns in the contract's order. If rows share a primary key (or a unique value), the first of
    equal rows stays. If they differ, all are set aside, because nothing tells which is right. Rows that break other
    rules do not count as copies.
    """
    if any(one.rows is None and one.finding.blocks for one in broken):
        return None
    about_rows = [(one.finding, one.rows) for one in broken if one.rows is not None and one.finding.blocks]
    keep = np.ones(frame.height, dtype=np.bool_)
    choices: list[Choice] = []
    for finding, failing in sorted(about_rows, key=lambda one: one[0].rule in _ONCE):
        rows = failing
        if finding.rule in _ONCE:
            is_key = finding.rule == "duplicate_primary_key"
            columns = list(contract.primary_key) if is_key else [finding.column or ""]
            rows = _copies(frame, failing[keep[failing]], columns)
        keep[rows] = False
        if len(rows):
            choices.append((finding, rows))
    return Division(keep=keep, choices=tuple(choices)) if choices else None


def _copies(frame: pl.DataFrame, rows: npt.NDArray[np.int64], columns: list[str]) -> npt.NDArray[np.int64]:
    """Return those of `rows` to set aside: copies that differ, and all but the first of equal rows."""
    some = frame[rows]
    key, whole = pl.struct(columns), pl.struct(pl.all())
    out = some.select(
        pl.when(whole.n_unique().over(columns) > 1)
        .then(key.is_duplicated())
        .otherwise(~whole.is_first_distinct())
    ).to_series()
    return rows[out.to_numpy().astype(np.bool_)]


def set_aside_findings(
    findings: Sequence[Finding], bad: int, rows: int, limit: float, table: str, key: str
) -> list[Finding]:
    """Return the findings of a partition whose `bad` of `rows` rows are set aside: warnings, the count first."""
    return [
        Finding(
            rule=QUARANTINED,
            severity="warn",
            measured=f"{bad} of {rows} rows ({bad / rows:.2%})",
            limit=f"at most {limit:.2%} of the rows",
            failing_rows=bad,
            explanation=(
                f"{bad} rows break rules and are set aside; the others are on main. See them with "
                f"`ml-assets quarantine show {table} {key}`. After a fix of the rules, "
                f"`ml-assets quarantine readmit {table} {key}` validates them again; after a fix of the source, "
                "materialize the partition again."
            ),
        ),
        *(replace(one, severity="warn") for one in findings),
    ]


def undated_finding(
    frame: pl.DataFrame, contract: Contract, column: str, table: str, *, most: int, share: Share | None
) -> Finding:
    """Return the finding about `frame`, the rows of a source without a time: a warning if they can be set aside.

    `share`: limit of the quarantine and rows of the table; None for a table without a quarantine. `most`: largest
    number of rows that are read; `frame` may have one more.
    """
    number = frame.height
    count = f"more than {most}" if number > most else f"{number}"
    fits = share is not None and number <= min(most, share.limit * share.rows)
    again = (
        "After a fix at the source, materialize the partitions to which they belong; a recheck sees a window."
    )
    leave_out = f"fill {column!r} at the source, or leave the rows out there, by a view or `source.query`"
    if share is None:
        remedy = (
            "They belong to no partition, so each partition is rejected while the source has them. To land the others, "
            f"{leave_out}, or set them aside: on_bad_rows: quarantine. {again}"
        )
    elif not fits:
        remedy = (
            f"Too many to set aside: the limit counts the {share.rows} rows of the table. Raise `quarantine.limit`, "
            f"{leave_out}. {again}"
        )
    else:
        remedy = (
            "They belong to no partition and are set aside. See them with "
            f"`ml-assets quarantine show {table} undated`. {again}"
        )
    return Finding(
        rule=UNDATED_RULE,
        column=column,
        severity="warn" if fits else "block",
        measured=f"{count} rows of the source without a time",
        limit="a time of the years 1 to 9999 in each row",
        failing_rows=number,
        examples=row_examples(frame, contract, column, np.arange(min(number, EXAMPLES))),
        explanation=remedy,
    )


def with_reason_undated(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return rows without a time, with `RULE`, `COLUMN` and `REASON`."""
    reason = f"{UNDATED_RULE} of {column}: expected a time of the years 1 to 9999"
    return frame.with_columns(
        pl.lit(UNDATED_RULE).alias(RULE), pl.lit(column).alias(COLUMN), pl.lit(reason).alias(REASON)
    )


def unreconciled_finding(returned: int, landed: int, quarantined: int, repeated: int) -> Finding:
    """Return the finding that rows got lost, or came up, between the source and the partition."""
    return Finding(
        rule="unreconciled",
        measured=f"{landed} rows, {quarantined} in quarantine, {repeated} repeated, of {returned}",
        limit="as many rows as the source returned",
        explanation=(
            "Rows of the source are neither in the partition nor in quarantine, or the partition has rows that the "
            "source did not return. This is a defect of this project: report it with the source section."
        ),
    )


def over_limit_finding(bad: int, rows: int, limit: float) -> Finding:
    """Return the finding that explains why rows were not set aside."""
    return Finding(
        rule=OVER_LIMIT,
        measured=f"{bad} of {rows} rows ({bad / rows:.2%})",
        limit=f"at most {limit:.2%} of the rows",
        failing_rows=bad,
        explanation=(
            "Too many rows break rules to set them aside, so the whole partition is rejected. Fix the source, or raise "
            "`quarantine.limit`."
        ),
    )


def without_reasons(frame: pl.DataFrame) -> pl.DataFrame:
    """Return quarantined rows as the source gave them."""
    return frame.drop(RULE, COLUMN, REASON)


def reasons_of(profile: dict[str, Any]) -> dict[str, int]:
    """Return rule → rows from the stored profile of quarantined rows."""
    return {str(rule): int(rows) for rule, rows in profile["columns"].get(RULE, {}).get("values", [])}

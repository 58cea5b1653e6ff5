"""Validate many partitions by one contract as one joined frame, and return the findings of each.

Here: names and types of columns first, then values, keys and event times of partitions that pass. Not here: row counts
(`volume.py`), the rules of a contract (`compiled_contract.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.data.validation.column_types import NUMERIC
from ml_assets.data.validation.compiled_contract import PARTITION, Violation, is_present, violations
from ml_assets.data.validation.contract import Contract, ForeignKey, SchemaDrift, schema_drift
from ml_assets.data.validation.explain import (
    explain_foreign_key,
    explain_no_table,
    explain_null_share,
    explain_other_types,
    explain_rows,
    explain_times,
    shown,
    texts,
)
from ml_assets.data.validation.verdict import Finding
from ml_assets.foundation.days import after, begin_of, midnight
from resources.words import name_some

Days = tuple[date, date]
"""First and last day of a partition, both inclusive; of an hourly table, its hour twice."""


Referred = Callable[[ForeignKey, str], pl.DataFrame | str]
"""(foreign key, partition key) → the columns of the other table that it names, or the reason why there are none."""


@dataclass(frozen=True, kw_only=True)
class BrokenRule:
    """A rule that a partition breaks, with the rows that break it."""

    finding: Finding
    rows: npt.NDArray[np.int64] | None = None
    """Positions of the rows, ascending; None if the rule is about the whole partition."""


def check_partitions(
    frames: Mapping[str, pl.DataFrame],
    contract: Contract,
    *,
    bounds: Mapping[str, Days] | None = None,
    now: datetime | None = None,
) -> dict[str, list[Finding]]:
    """Return the findings of every partition; an empty list if no rule is broken. See `broken_rules`."""
    broken = broken_rules(frames, contract, bounds=bounds, now=now)
    return {key: [one.finding for one in found] for key, found in broken.items()}


def broken_rules(
    frames: Mapping[str, pl.DataFrame],
    contract: Contract,
    *,
    bounds: Mapping[str, Days] | None = None,
    now: datetime | None = None,
    referred: Referred | None = None,
) -> dict[str, list[BrokenRule]]:
    """Return the broken rules of every partition; an empty list if there are none.

    `frames` is partition key → rows. `bounds` is partition key → days, for event times. Without `bounds` (a table
    without partitions) only event times in the future are findings. `max_future_hours` counts from `now`
    (timezone-aware; default: the current time). `referred` finds the rows to which foreign keys refer; it is needed if
    there are any. Never raises for bad data.
    """
    if contract.foreign_keys and referred is None:
        raise ValueError("a contract with foreign keys needs the tables to which they refer")
    broken = {
        key: [BrokenRule(finding=finding) for finding in schema_findings(frame, contract)]
        for key, frame in frames.items()
    }
    clean = {
        key: contract.in_order(frame) for key, frame in frames.items() if not broken[key] and frame.height
    }
    if not clean:
        return broken
    for key, one in _broken_values(clean, contract):
        broken[key].append(one)
    if referred is not None:
        for key, frame in clean.items():
            looked_up = (
                _broken_key(frame, contract, one, referred(one, key)) for one in contract.foreign_keys
            )
            broken[key] += filter(None, looked_up)
    if contract.event_time:
        moment = now or datetime.now(UTC)
        for key, frame in clean.items():
            broken[key] += _broken_times(frame, contract, (bounds or {}).get(key), moment)
    return broken


def _broken_values(clean: Mapping[str, pl.DataFrame], contract: Contract) -> list[tuple[str, BrokenRule]]:
    keys, frames = list(clean), list(clean.values())
    heights = np.array([frame.height for frame in frames])
    joined = pl.concat(frames)
    if contract.primary_key or any(column.unique for column in contract.by_name.values()):
        joined = joined.with_columns(
            pl.Series(PARTITION, np.repeat(np.arange(len(keys), dtype=np.uint32), heights))
        )
    starts = np.concatenate([[0], np.cumsum(heights)])
    found: list[tuple[str, BrokenRule]] = []
    for violation in violations(joined, contract):
        # Start of each partition's share in the failing rows, which are ascending.
        cuts = np.searchsorted(violation.rows, starts)
        for index in np.flatnonzero(np.diff(cuts)):
            rows = violation.rows[cuts[index] : cuts[index + 1]] - starts[index]
            local = Violation(rule=violation.rule, column=violation.column, rows=rows)
            finding = explain_rows(frames[index], contract, local)
            found.append((keys[index], BrokenRule(finding=finding, rows=rows)))
    return [*found, *_null_shares(clean, contract)]


def _null_shares(clean: Mapping[str, pl.DataFrame], contract: Contract) -> Iterator[tuple[str, BrokenRule]]:
    limited = {
        name: (column, limit)
        for name, column in contract.by_name.items()
        if (limit := column.max_null_share) is not None
    }
    for key, frame in clean.items() if limited else ():
        absent = frame.select((~is_present(pl.col(name), one)).sum() for name, (one, _) in limited.items())
        for (name, (column, limit)), nulls in zip(limited.items(), absent.row(0), strict=True):
            if nulls > Decimal(str(limit)) * frame.height:  # 0.29 * 100 is less than 29 as a float
                finding = explain_null_share(name, column, nulls, frame.height)
                yield key, BrokenRule(finding=finding)


def _broken_key(
    frame: pl.DataFrame, contract: Contract, key: ForeignKey, others: pl.DataFrame | str
) -> BrokenRule | None:
    columns = list(key.columns)
    if isinstance(others, str):
        return BrokenRule(finding=explain_no_table(key, others))
    mine, theirs = frame.select(columns), others.rename(dict(zip(key.named, columns, strict=True)))
    if mine.schema != theirs.schema:
        return BrokenRule(finding=explain_other_types(key, mine, theirs))
    lonely = mine.with_row_index("__row").join(theirs.unique(), on=columns, how="anti", maintain_order="left")
    rows = lonely.drop_nulls(columns)["__row"].to_numpy().astype(np.int64)
    if not len(rows):
        return None
    return BrokenRule(finding=explain_foreign_key(frame, contract, key, rows), rows=rows)


def _broken_times(
    frame: pl.DataFrame, contract: Contract, days: Days | None, now: datetime
) -> list[BrokenRule]:
    name = contract.event_time
    if name is None:
        return []
    times = frame.get_column(name)
    if times.dtype == pl.Date():
        # A day without a time counts as its first moment in the table's own zone. Not computed by polars, which returns
        # null for a midnight that clocks skip: such rows passed in any partition.
        days_found = times.unique().drop_nulls()
        moments = [midnight(day, contract.event_time_zone) for day in days_found]
        times = times.replace_strict(
            days_found,
            pl.Series(moments, dtype=pl.Datetime("us", "UTC")),
            return_dtype=pl.Datetime("us", "UTC"),
        )
    broken: list[BrokenRule] = []
    if contract.max_future_hours is not None:
        latest = now.astimezone(UTC) + timedelta(hours=contract.max_future_hours)
        rows = np.flatnonzero(times.gt(latest).fill_null(value=False))
        if len(rows):
            limit = f"no later than {_moment(latest)}"
            finding = explain_times(frame, contract, name, "future_event", rows, limit)
            broken.append(BrokenRule(finding=finding, rows=rows))
    if days is not None:
        first, end = _instants(contract, days)
        rows = np.flatnonzero((times.lt(first) | times.ge(end)).fill_null(value=False))
        if len(rows):
            limit = f"from {_moment(first)} to before {_moment(end)}"
            finding = explain_times(frame, contract, name, "event_outside_partition", rows, limit)
            broken.append(BrokenRule(finding=finding, rows=rows))
    return broken


def _instants(contract: Contract, days: Days) -> tuple[datetime, datetime]:
    zone, slack = contract.event_time_zone, timedelta(hours=contract.event_slack_hours)
    # Convert to UTC before adding the slack: hours added to a local time ignore changes of daylight saving time.
    return begin_of(days[0], zone) - slack, begin_of(after(days[1]), zone) + slack


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


LISTED = 8
"""Names that one sentence lists. It counts the others."""


def schema_findings(frame: pl.DataFrame, contract: Contract) -> list[Finding]:
    """Return findings about the frame's columns: missing, unexpected, of the wrong type, or of another table."""
    drift = schema_drift(contract, frame)
    if not drift:
        return []
    if 2 * len(drift.removed) > len(contract.names):
        return [_another_table(frame, contract, drift)]
    return [
        *(_missing(name, dtype, drift) for name, dtype in drift.removed),
        *(_unexpected(name, dtype) for name, dtype in drift.added),
        *(_wrong_type(frame, contract, name, expected, found) for name, expected, found in drift.changed),
    ]


def _another_table(frame: pl.DataFrame, contract: Contract, drift: SchemaDrift) -> Finding:
    have = name_some(frame.columns, LISTED) or "no columns at all"
    return Finding(
        rule="another_table",
        measured=f"{len(contract.names) - len(drift.removed)} of {len(contract.names)} columns; found {have}",
        limit=f"the columns {name_some(contract.names, LISTED)}",
        failing_rows=frame.height,
        explanation=(
            f"Most of this table's columns are missing "
            f"({name_some([name for name, _ in drift.removed], LISTED)}), so this is most likely another "
            f"table's file. Check the file that the source read for this partition."
        ),
    )


def _missing(name: str, dtype: str, drift: SchemaDrift) -> Finding:
    candidates = [other for other, found in drift.added if found == dtype]
    renamed = f" It may have been renamed to {candidates[0]!r}." if len(candidates) == 1 else ""
    return Finding(
        rule="missing_column",
        column=name,
        measured="no such column",
        limit=f"a column of type {dtype}",
        explanation=(
            f"The column {name!r} is missing.{renamed} Fix the source, or remove the column from the contract "
            f"if nothing reads it."
        ),
    )


def _unexpected(name: str, dtype: str) -> Finding:
    return Finding(
        rule="unexpected_column",
        column=name,
        measured=f"a column of type {dtype}",
        limit="no such column",
        explanation=(
            f"The contract does not know the column {name!r}. Add it to the contract, or drop it in the "
            "source."
        ),
    )


def _wrong_type(frame: pl.DataFrame, contract: Contract, name: str, expected: str, found: str) -> Finding:
    column = frame.get_column(name)
    failing, examples, hint = (
        column.len(),
        _examples(column, contract),
        f"Cast it in the source to {expected}.",
    )
    if expected in NUMERIC and found == "string":
        not_numbers = column.filter(column.is_not_null() & column.cast(pl.Float64, strict=False).is_null())
        if not_numbers.len():
            failing, examples = (
                not_numbers.len(),
                _examples(not_numbers.unique(maintain_order=True), contract),
            )
            hint = f"{not_numbers.len()} of its strings are not numbers."
        else:
            hint = f"All its strings are numbers: cast them in the source to {expected}."
    elif expected == "datetime" and found.endswith(", UTC]"):
        hint = f'Times are stored in microseconds: pl.col("{name}").dt.cast_time_unit("us") converts them.'
    elif expected == "datetime" and found.startswith("datetime["):
        hint = "Times are stored in microseconds and UTC: convert them in the source, which knows their zone."
    elif found == "null":
        hint = "All its values are null, so the source could not infer the type: set the type there."
    return Finding(
        rule="wrong_type",
        column=name,
        measured=found,
        limit=expected,
        failing_rows=failing,
        examples=examples,
        explanation=f"The column {name!r} holds {found} where {expected} is expected. {hint}",
    )


def _examples(column: pl.Series, contract: Contract) -> tuple[str, ...]:
    return tuple(texts(shown(column.head(3), contract)))

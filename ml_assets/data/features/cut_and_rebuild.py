"""Leakage test: hide facts that were not yet known, rebuild in a fresh process, and require the same rows.

Here: the declaration of the moment when a table's facts became known, cutting tables at a moment, and comparing two
builds. The test works for any feature function. It also detects skew between training and serving, because the rebuild
after a cut sees only facts that serving would have seen. A partition that is built alone, from the rows of its
lookback, is compared with the same partition of the range. Not here: reading tables, and printing (cli).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import polars as pl

from ml_assets.data.features.telling import Telling, telling_columns
from ml_assets.foundation.sections import Section

Build = Callable[[Mapping[str, pl.DataFrame], date, date], pl.DataFrame]
"""Feature function: `(inputs, first, last) -> rows`."""

MISSING_ROW = "(row)"
"""Text in place of the column if a whole row is in only one of the builds."""

ALL_COLUMNS = "all columns"
"""Text in place of the columns of a table that was always known as a whole."""

HIDDEN = "(hidden)"
"""Text in place of each value of a column that examples do not show."""
_EXAMPLES = 3
_ROUNDING = 1e-5
"""Relative tolerance of a float: a hundred times the precision of float32."""
_RESIDUE = 1e-9
"""Tolerance relative to the largest absolute value of the column."""


_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
_A_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
_PHASES_OF_LONG = 4
"""Cuts for inputs whose partitions are a week or longer: so many of the tested partitions, spread over the range."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Leaks that the chosen cuts find if they recur: one cut for each hour of a day, or for each day of a week."""

    length: timedelta
    """Shortest time by which a leak is ahead of its prediction."""
    phases: int
    """Hours of the day, or days of the week, that have a cut. Of longer partitions: those with a cut."""
    of: int
    """Hours of a day, days of a week; of longer partitions equal to `phases`."""

    def explain(self) -> str:
        """Return a line with the leaks that the test would have found."""
        if self.length < _DAY:
            name, where = "1 hour", f"at {self._some} hours of the day"
        elif self.length < _WEEK:
            name, where = "1 day", f"on {self._some} days of the week"
        else:
            name, where = f"{self.length.days} days", f"in {self.phases} partitions of the range"
        return (
            f"could find: uses of facts from {name} or more after the prediction, {where}; a shorter leak, or a single "
            "one elsewhere, may stay unseen"
        )

    @property
    def _some(self) -> str:
        return f"each of the {self.of}" if self.phases == self.of else f"{self.phases} of the {self.of}"


LeakTestFault = Literal["columns", "key", "cut", "known_at", "no rows"]


class LeakTestError(ValueError):
    """The test cannot be run as declared; the message names the table or column and the remedy."""

    def __init__(self, said: str, fault: LeakTestFault | None = None, *names: str) -> None:
        """`names`: table and columns at fault, as far as there are any."""
        super().__init__(said)
        self.fault = fault
        self.names = names


class KnowledgeRule(Section):
    """Rule for the moment at which facts of a table became known."""

    column: str
    """Column with the moment (UTC). Null means never: then the facts are always hidden."""
    columns: tuple[str, ...] = ()
    """Columns that were null until then, `column` itself with them. Not given: the whole row was unknown."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A column whose values changed when the future was hidden, or when nothing was."""

    cut: datetime | None
    """Moment at which the future was hidden; None if two builds from the same inputs differ."""
    column: str
    """Name of the column; `MISSING_ROW` if rows appeared or disappeared."""
    rows: int
    """Number of rows predicted at or before `cut` that differ."""
    examples: tuple[str, ...]
    """Key, value with the future present, value without."""
    is_remembered: bool = False
    """True if the process that saw the future still returns the old value: the function keeps state."""

    def explain(self) -> str:
        """Return a line with the fault and the remedy."""
        examples = f"{self.rows} rows differ, for example {'; '.join(self.examples)}"
        if self.cut is None:
            return (
                f"{self.column} is random, or depends on earlier calls: two builds from the same inputs "
                f"differ, {examples}. Compute it from the inputs alone"
            )
        knows = f"{self.column} uses facts from after {self.cut:%Y-%m-%d %H:%M} UTC: {examples}"
        if self.is_remembered:
            knows += ". The function keeps state between calls, such as a global or a cache, which may hide other leaks"
        return knows


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A partition of the range, with the inputs from which the platform builds it alone."""

    key: str
    first: date
    last: date
    inputs: Mapping[str, pl.DataFrame]
    """Table → the rows within the declared lookback."""


Cause = Literal["lookback", "lookback or later", "range"]
"""Causes of other values in a partition that is built alone. `lookback`: it sees less of the past. `lookback or later`:
it sees less of the past or of later partitions. `range`: the values depend on the requested days."""


@dataclass(frozen=True, kw_only=True)
class DiffersAlone:
    """A column whose values differ between a partition that is built alone and the same partition of a range."""

    key: str
    """Key of the partition."""
    column: str
    """Name of the column; `MISSING_ROW` if rows appeared or disappeared."""
    rows: int
    """Number of rows of the partition that differ."""
    examples: tuple[str, ...]
    """Key, value in the range, value alone."""
    cause: Cause

    def explain(self) -> str:
        """Return a line with the fault and the remedy."""
        found = (
            f"{self.column} of {self.key} differs when the partition is built alone: {self.rows} rows, "
            f"for example {'; '.join(self.examples)}"
        )
        if self.cause == "range":
            return (
                f"the requested days change the rows: {found}. Use `first` and `last` only to filter the result, not "
                "in a mean or a rank over all rows of the range"
            )
        later = ". It cannot read later partitions" if self.cause == "lookback or later" else ""
        return (
            f"lookback is too short: {found}. Raise `lookback` of the inputs to the number of partitions that the "
            f"function reads before the partition it builds{later}"
        )


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """Findings of the test."""

    cuts: tuple[datetime, ...]
    rows_compared: int
    """Rows over all cuts."""
    columns_compared: tuple[str, ...]
    leaks: tuple[Leak, ...]
    always_known: Mapping[str, tuple[str, ...]]
    """Table → columns that no rule hides. The test assumes that they were known before any prediction."""
    alone: tuple[str, ...] = ()
    """Keys of the partitions that were also built alone."""
    differs_alone: tuple[DiffersAlone, ...] = ()
    telling: tuple[Telling, ...] = ()
    """Columns that the test assumes to be known, and that by themselves tell a label: a question, not a leak."""
    reach: Reach | None = None
    """Leaks that the cuts find wherever they recur; None if the caller chose the cuts."""

    @property
    def ok(self) -> bool:
        """True if nothing leaked and partitions that were built alone equal those of the range."""
        return not self.leaks and not self.differs_alone

    def explain(self) -> str:
        """Return one line per leak, or a line with the numbers of compared rows and columns.

        Further lines are about partitions that were built alone, and list the columns that count as always known.
        """
        lines = [leak.explain() for leak in self.leaks] or [
            f"no leak: {self.rows_compared} rows × {len(self.columns_compared)} columns are identical with "
            f"the future hidden at {len(self.cuts)} moments"
        ]
        if not self.leaks and self.reach is not None:
            lines.append(self.reach.explain())
        lines += [one.explain() for one in self.differs_alone]
        if self.alone and not self.differs_alone:
            lines.append(
                f"lookback suffices: {' and '.join(self.alone)} are identical when each is built alone"
            )
        lines += [
            f"assumed always known: {table}: {', '.join(columns)}"
            for table, columns in self.always_known.items()
            if columns
        ]
        lines += [
            f"suspicious: {one.explain()}, and it is assumed always known: if it is known only afterwards, name it in "
            "`known_at` of its table"
            for one in self.telling
        ]
        return "\n".join(lines)


def leak_test(
    build: Build,
    inputs: Mapping[str, pl.DataFrame],
    known_at: Mapping[str, Sequence[KnowledgeRule]],
    first: date,
    last: date,
    *,
    primary_key: Sequence[str],
    labels: Sequence[str] = (),
    predicted_at: str = "predicted_at",
    cuts: Sequence[datetime] | int | timedelta = 3,
    hidden: Collection[str] = (),
    rebuild: Build | None = None,
    alone: Sequence[Alone] = (),
    partition_date: str = "partition_date",
) -> LeakReport:
    """Build `first`..`last` twice from all of `inputs`, then once per cut from the facts known at the cut; compare.

    Rows with `predicted_at` at or before a cut must be equal in every column except `labels`. `known_at` has an entry
    for every table of `inputs`; an empty list means that the table was always known. `cuts` are moments in UTC; or
    their number: then they are spread evenly over the moments of prediction; or the length of the leaks to find: then
    there is one before the end of each hour of the day, or of each day of the week (`Reach`). Examples show no values
    of `hidden`
    columns. `rebuild` is the same function in a process that never saw the future; it builds cuts oldest first. By
    default it is `build`, and then the test does not notice state that the function keeps between calls.

    Each partition of `alone` (in order, all within the range) is built once more alone. Its rows must equal the rows of
    the range with its first day as `partition_date`, in every column except `labels`; floats may differ by rounding.

    Raises `LeakTestError` if a declaration does not fit the tables, if `primary_key` is not unique in the built rows,
    or if no row was predicted before a cut.
    """
    _require_rules(inputs, known_at)
    full = build(inputs, first, last)
    needed = (*primary_key, predicted_at, *((partition_date,) if alone else ()))
    missing = [name for name in needed if name not in full.columns]
    if missing:
        raise LeakTestError(
            f"the built table has no columns {missing}; it has {full.columns}", "columns", *missing
        )
    if full.select(primary_key).n_unique() < full.height:
        raise LeakTestError(
            f"{list(primary_key)} repeat in the built table: name the columns that identify a row",
            "key",
            *primary_key,
        )
    reach: Reach | None = None
    if isinstance(cuts, timedelta):
        moments, reach = _by_phase(full[predicted_at], cuts)
    else:
        moments = _spread(full[predicted_at], cuts) if isinstance(cuts, int) else tuple(sorted(cuts))
    others = [name for name in full.columns if name not in primary_key]
    compare = _Comparison(primary_key, frozenset(hidden))
    leaks = compare.leaks(full, build(inputs, first, last), others, None)
    unsteady = {leak.column for leak in leaks}  # a cut shows nothing about these columns
    columns = tuple(name for name in others if name not in {*labels, *unsteady})
    rows_compared = 0
    for cut in moments:
        before = full.filter(pl.col(predicted_at) <= cut)
        if before.is_empty():
            raise LeakTestError(
                f"no row was predicted at or before {cut}: choose cuts within {first}..{last}", "cut"
            )
        then = {table: known_by(rows, known_at[table], cut) for table, rows in inputs.items()}
        rows_compared += before.height
        rebuilt = (rebuild or build)(then, first, last).filter(pl.col(predicted_at) <= cut)
        of_cut = compare.leaks(before, rebuilt, columns, cut)
        if of_cut and rebuild is not None:
            here = build(then, first, last).filter(pl.col(predicted_at) <= cut)
            stay = {leak.column for leak in compare.leaks(before, here, columns, cut)}
            of_cut = [replace(leak, is_remembered=leak.column not in stay) for leak in of_cut]
        leaks += of_cut
    differs_alone: list[DiffersAlone] = []
    for one in alone:  # after the cuts, because it sees facts that they may not see
        of_one = pl.col(partition_date) == one.first
        by_itself = (rebuild or build)(one.inputs, one.first, one.last).filter(of_one)
        differs = compare.differences(full.filter(of_one), by_itself, columns, _ALONE, rounding=True)
        if differs:
            # Build the same days from all inputs: a column that still equals the lone build depends on the days.
            wide = build(inputs, one.first, one.last).filter(of_one)
            of_inputs = {
                x.column for x in compare.differences(wide, by_itself, columns, _ALONE, rounding=True)
            }
            seen: Cause = "lookback" if one.last == last else "lookback or later"
            differs_alone += [
                DiffersAlone(
                    key=one.key,
                    column=x.column,
                    rows=x.rows,
                    examples=x.examples,
                    cause=seen if x.column in of_inputs else "range",
                )
                for x in differs
            ]
    always_known = {table: _always_known(rows, known_at[table]) for table, rows in inputs.items()}
    # A feature with the name of an input's column is that column, as a rule.
    names = {name for columns in always_known.values() for name in columns}
    assumed = [name for name in full.columns if name in names and name not in (*primary_key, *labels)]
    return LeakReport(
        cuts=moments,
        rows_compared=rows_compared,
        columns_compared=columns,
        leaks=tuple(leaks),
        always_known=always_known,
        telling=tuple(
            one for label in labels if label in full.columns for one in telling_columns(full, assumed, label)
        ),
        alone=tuple(one.key for one in alone),
        differs_alone=tuple(differs_alone),
        reach=reach,
    )


def known_by(rows: pl.DataFrame, rules: Sequence[KnowledgeRule], moment: datetime) -> pl.DataFrame:
    """Return the table as it was known at `moment`: without later rows, and with null for later values."""
    for rule in rules:
        if not rule.columns:
            rows = rows.filter(pl.col(rule.column) <= moment)
    # Apply all rules at once, because one rule may hide the `column` of another.
    hidden: dict[str, pl.Expr] = {}
    for rule in rules:
        if rule.columns:
            is_known = pl.col(rule.column).is_not_null() & (pl.col(rule.column) <= moment)
            for name in (*rule.columns, rule.column):
                hidden[name] = hidden[name] & is_known if name in hidden else is_known
    return rows.with_columns(pl.when(is_known).then(pl.col(name)) for name, is_known in hidden.items())


def _require_rules(
    inputs: Mapping[str, pl.DataFrame], known_at: Mapping[str, Sequence[KnowledgeRule]]
) -> None:
    for table, rows in inputs.items():
        if table not in known_at:
            raise LeakTestError(
                f"{table} declares no `known_at`, so the test cannot hide its facts: add `known_at: "
                f"[{{column: <column>}}]` to the input, or `known_at: []` if they were always known",
                "known_at",
                table,
            )
        for rule in known_at[table]:
            missing = [name for name in (rule.column, *rule.columns) if name not in rows.columns]
            if missing:
                raise LeakTestError(
                    f"{table} has no columns {missing} that its `known_at` names", "columns", table, *missing
                )
            if not isinstance(rows.schema[rule.column], pl.Datetime):
                raise LeakTestError(
                    f"{table}: `known_at` column {rule.column} is {rows.schema[rule.column]}: it must be a "
                    f"datetime in UTC",
                    "known_at",
                    table,
                    rule.column,
                )


def _always_known(rows: pl.DataFrame, rules: Sequence[KnowledgeRule]) -> tuple[str, ...]:
    if any(not rule.columns for rule in rules):
        return ()
    if not rules:
        return (ALL_COLUMNS,)
    hidden = {name for rule in rules for name in (*rule.columns, rule.column)}
    return tuple(name for name in rows.columns if name not in hidden)


def _distinct(moments: pl.Series) -> pl.Series:
    distinct = moments.drop_nulls().unique().sort()
    if distinct.is_empty():
        raise LeakTestError("the build returned no rows: choose a range with data", "no rows")
    return distinct


def _by_phase(moments: pl.Series, length: timedelta) -> tuple[tuple[datetime, ...], Reach]:
    """Return cuts that find each leak of `length` that recurs, and what they find.

    Time is cut into slots of that length. A cut at the last prediction of a slot hides what any row of the slot sees
    that far ahead. Functions depend on the hour of the day or on the day of the week, so each of these has a slot. The
    newest slot has none where others do: the inputs hold nothing after it.
    """
    last_of: dict[int, datetime] = {}
    for moment in _distinct(moments):
        # A moment without a zone is in UTC, as the test's cuts are.
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        last_of[(aware - _A_MONDAY) // length] = moment
    slots = sorted(last_of)
    slots = slots[:-1] or slots
    if length >= _WEEK:
        count = min(_PHASES_OF_LONG, len(slots))
        chosen = [slots[(i + 1) * len(slots) // (count + 1)] for i in range(count)]
        reach = Reach(length=length, phases=len(set(chosen)), of=len(set(chosen)))
    else:
        every = (_DAY if length < _DAY else _WEEK) // length
        phases: dict[int, list[int]] = {}
        for slot in slots:
            phases.setdefault(slot % every, []).append(slot)
        # Spread over the range: a source may have changed in it.
        chosen = [some[phase * len(some) // every] for phase, some in phases.items()]
        reach = Reach(length=length, phases=len(phases), of=every)
    return tuple(sorted({last_of[slot] for slot in chosen})), reach


def _spread(moments: pl.Series, count: int) -> tuple[datetime, ...]:
    distinct = _distinct(moments)
    return tuple(distinct[(i + 1) * len(distinct) // (count + 1)] for i in range(count))


_FUTURE = ("with", "without", " the future", " it")
_TWICE = ("the first time", "the second time", "", "")
_ALONE = ("in the range", "alone", "", "")
"""Names of the two builds for examples, and words that follow each of them if a whole row is in only one build."""


@dataclass(frozen=True, kw_only=True)
class _Difference:
    column: str
    rows: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class _Comparison:
    """Comparison of two builds of the same rows."""

    primary_key: Sequence[str]
    hidden: frozenset[str]

    def leaks(
        self, before: pl.DataFrame, after: pl.DataFrame, columns: Sequence[str], cut: datetime | None
    ) -> list[Leak]:
        found = self.differences(before, after, columns, _FUTURE if cut else _TWICE)
        return [Leak(cut=cut, column=one.column, rows=one.rows, examples=one.examples) for one in found]

    def differences(
        self,
        before: pl.DataFrame,
        after: pl.DataFrame,
        columns: Sequence[str],
        words: tuple[str, str, str, str],
        *,
        rounding: bool = False,
    ) -> list[_Difference]:
        """Return differences by column, whole rows first. With `rounding`, floats may differ by rounding errors."""
        key, (with_it, without, future, it) = self.primary_key, words
        lost, come = before.join(after, on=key, how="anti"), after.join(before, on=key, how="anti")
        found: list[_Difference] = []
        if len(lost) or len(come):
            examples = (
                *(f"{_name(row)}: only {with_it}{future}" for row in self._rows(lost, *key)),
                *(f"{_name(row)}: only {without}{it}" for row in self._rows(come, *key)),
            )
            found.append(_Difference(column=MISSING_ROW, rows=len(lost) + len(come), examples=examples))
        both = before.join(after, on=key, how="inner", suffix="__after", maintain_order="left")
        for column in columns:
            other = f"{column}__after"
            unlike = pl.col(column).ne_missing(pl.col(other))
            if rounding and both.schema[column].is_float() and both.schema[other].is_float():
                unlike &= ~_is_rounding(pl.col(column), pl.col(other))
            differs = both.filter(unlike)
            if len(differs):
                examples = tuple(
                    f"{_name(row[:-2])}: {_said(row[-2])} {with_it}, {_said(row[-1])} {without}"
                    for row in self._rows(differs, *key, column, other)
                )
                found.append(_Difference(column=column, rows=len(differs), examples=examples))
        return found

    def _rows(self, frame: pl.DataFrame, *names: str) -> list[tuple[object, ...]]:
        """Return a few rows as examples, without the values of hidden columns."""
        secret = {name for column in self.hidden for name in (column, f"{column}__after")}
        masked = [pl.lit(HIDDEN).alias(name) if name in secret else pl.col(name) for name in names]
        return frame.head(_EXAMPLES).select(masked).rows()


def _is_rounding(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    """True where two finite floats differ only by rounding errors of sums.

    A running sum carries rounding errors of the partitions before its window: 1e-13 in the range, 0.0 alone.
    """
    one, other = one.cast(pl.Float64), other.cast(pl.Float64)
    size = pl.max_horizontal(one.abs(), other.abs())
    largest = pl.when(size.is_finite()).then(size).max()
    near = (one - other).abs() <= _ROUNDING * size + _RESIDUE * largest
    return (one.is_finite() & other.is_finite() & near).fill_null(value=False)


def _name(row: Sequence[object]) -> str:
    return " ".join(str(value) for value in row)


def _said(value: object) -> object:
    """Return a value for an example: the number of bytes in place of bytes."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else value

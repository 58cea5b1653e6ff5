"""The leakage test: hide what was not yet known, rebuild in a fresh process, and require the same rows.

Here: how a table declares when its facts became known, cutting tables by that, and comparing two builds. It
works for any feature function, and it also guards against skew between training and serving: the rebuild
after a cut sees what serving would have seen. Not here: reading tables, and printing (cli).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

import polars as pl

from ml_assets.sections import Section

Build = Callable[[Mapping[str, pl.DataFrame], date, date], pl.DataFrame]
"""A feature function: `(inputs, first, last) -> rows`."""

MISSING_ROW = "(row)"
"""Stands for the column where a whole row is in one build and not in the other."""

ALL_COLUMNS = "all columns"
"""Stands for the columns of a table that was always known as a whole."""

HIDDEN = "(hidden)"
"""Stands for each value of a column that examples do not show."""
_EXAMPLES = 3


class LeakTestError(ValueError):
    """The test cannot be run as declared; the message names the table or column and the remedy."""


class KnowledgeRule(Section):
    """When facts of a table became known."""

    at: str
    """Column with the moment (UTC). Null means never: then the facts are always hidden."""
    hides: tuple[str, ...] = ()
    """Columns that were null until then, `at` itself with them. Not given: the whole row was unknown."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A column whose values changed when the future was hidden, or when nothing was."""

    cut: datetime | None
    """None: two builds from the same inputs differ."""
    column: str
    """`MISSING_ROW` where rows came or went."""
    rows: int
    """How many of the rows predicted at or before `cut` differ."""
    examples: tuple[str, ...]
    """Key, value with the future present, value without."""
    is_remembered: bool = False
    """The process that built with the future present gives the old value still: the function keeps state."""

    def explain(self) -> str:
        """Return a line that says what to mend."""
        examples = f"{self.rows} rows differ, for example {'; '.join(self.examples)}"
        if self.cut is None:
            return (
                f"{self.column} is random, or depends on earlier calls: built twice from the same inputs, {examples}. "
                "Let it follow from the inputs alone"
            )
        knows = f"{self.column} knows what happened after {self.cut:%Y-%m-%d %H:%M} UTC: {examples}"
        if self.is_remembered:
            knows += ". The function keeps state between calls, such as a global or a cache, which hides this elsewhere"
        return knows


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """What the test found."""

    cuts: tuple[datetime, ...]
    rows_compared: int
    """Over all cuts."""
    columns_compared: tuple[str, ...]
    leaks: tuple[Leak, ...]
    always_known: Mapping[str, tuple[str, ...]]
    """Table → columns no rule hides: what the test takes as known before any prediction."""

    @property
    def ok(self) -> bool:
        """True where nothing leaked."""
        return not self.leaks

    def explain(self) -> str:
        """One line a leak, or one line that says what was compared; then one a table of which something counts as
        always known."""
        lines = [leak.explain() for leak in self.leaks] or [
            f"no leak: {self.rows_compared} rows × {len(self.columns_compared)} columns are the same "
            f"with the future hidden at {len(self.cuts)} moments"
        ]
        lines += [
            f"taken as always known: {table}: {', '.join(columns)}"
            for table, columns in self.always_known.items()
            if columns
        ]
        return "\n".join(lines)


def leak_test(
    build: Build,
    inputs: Mapping[str, pl.DataFrame],
    known: Mapping[str, Sequence[KnowledgeRule]],
    first: date,
    last: date,
    *,
    key: Sequence[str],
    labels: Sequence[str] = (),
    predicted_at: str = "predicted_at",
    cuts: Sequence[datetime] | int = 3,
    hidden: Collection[str] = (),
    rebuild: Build | None = None,
) -> LeakReport:
    """Build `first`..`last` twice from all of `inputs`, then once per cut from what was known then, and compare.

    Rows with `predicted_at` at or before a cut must be the same in every column but `labels`. `known` names
    every table of `inputs`; an empty list says that a table was always known. `cuts` are moments in UTC, or
    how many to choose, spread evenly over the moments of prediction. Examples show no value of a `hidden` column.
    `rebuild` is the same function in a process that never saw the future, in which cuts are built oldest first; by
    default `build`, whose memory of earlier calls then stays unnoticed.

    Raises `LeakTestError` where a declaration does not fit the tables, `key` does not name the built rows, or
    none of them was predicted before a cut.
    """
    _require_rules(inputs, known)
    full = build(inputs, first, last)
    missing = [name for name in (*key, predicted_at) if name not in full.columns]
    if missing:
        raise LeakTestError(f"the built table has no columns {missing}; it has {full.columns}")
    if full.select(key).n_unique() < full.height:
        raise LeakTestError(
            f"{list(key)} repeat in the built table: name the columns that tell its rows apart"
        )
    moments = _spread(full[predicted_at], cuts) if isinstance(cuts, int) else tuple(sorted(cuts))
    others = [name for name in full.columns if name not in key]
    leaks = _differences(full, build(inputs, first, last), key, others, None, hidden)
    unsteady = {leak.column for leak in leaks}  # of these a cut can tell nothing
    columns = tuple(name for name in others if name not in {*labels, *unsteady})
    rows_compared = 0
    for cut in moments:
        before = full.filter(pl.col(predicted_at) <= cut)
        if before.is_empty():
            raise LeakTestError(
                f"no row was predicted at or before {cut}: choose cuts within {first}..{last}"
            )
        then = {table: known_by(rows, known[table], cut) for table, rows in inputs.items()}
        rows_compared += before.height
        rebuilt = (rebuild or build)(then, first, last).filter(pl.col(predicted_at) <= cut)
        of_cut = _differences(before, rebuilt, key, columns, cut, hidden)
        if of_cut and rebuild is not None:
            here = build(then, first, last).filter(pl.col(predicted_at) <= cut)
            stay = {leak.column for leak in _differences(before, here, key, columns, cut, hidden)}
            of_cut = [replace(leak, is_remembered=leak.column not in stay) for leak in of_cut]
        leaks += of_cut
    return LeakReport(
        cuts=moments,
        rows_compared=rows_compared,
        columns_compared=columns,
        leaks=tuple(leaks),
        always_known={table: _always_known(rows, known[table]) for table, rows in inputs.items()},
    )


def known_by(rows: pl.DataFrame, rules: Sequence[KnowledgeRule], moment: datetime) -> pl.DataFrame:
    """The table as it was known at `moment`: later rows gone, later values null."""
    for rule in rules:
        if not rule.hides:
            rows = rows.filter(pl.col(rule.at) <= moment)
    # All at once: one rule's `at` may be hidden by another.
    hidden: dict[str, pl.Expr] = {}
    for rule in rules:
        if rule.hides:
            is_known = pl.col(rule.at).is_not_null() & (pl.col(rule.at) <= moment)
            for name in (*rule.hides, rule.at):
                hidden[name] = hidden[name] & is_known if name in hidden else is_known
    return rows.with_columns(pl.when(is_known).then(pl.col(name)) for name, is_known in hidden.items())


def _require_rules(inputs: Mapping[str, pl.DataFrame], known: Mapping[str, Sequence[KnowledgeRule]]) -> None:
    for table, rows in inputs.items():
        if table not in known:
            raise LeakTestError(
                f"{table} does not say when its facts became known: add `known: [{{at: <column>}}]` to the "
                "input, or `known: []` if they always were"
            )
        for rule in known[table]:
            missing = [name for name in (rule.at, *rule.hides) if name not in rows.columns]
            if missing:
                raise LeakTestError(f"{table} has no columns {missing} that its `known` names")
            if not isinstance(rows.schema[rule.at], pl.Datetime):
                raise LeakTestError(
                    f"{table}: `at: {rule.at}` is {rows.schema[rule.at]}, not a moment in UTC"
                )


def _always_known(rows: pl.DataFrame, rules: Sequence[KnowledgeRule]) -> tuple[str, ...]:
    if any(not rule.hides for rule in rules):
        return ()
    if not rules:
        return (ALL_COLUMNS,)
    hidden = {name for rule in rules for name in (*rule.hides, rule.at)}
    return tuple(name for name in rows.columns if name not in hidden)


def _spread(moments: pl.Series, count: int) -> tuple[datetime, ...]:
    distinct = moments.drop_nulls().unique().sort()
    if distinct.is_empty():
        raise LeakTestError("the build gave no rows: choose a range with data")
    return tuple(distinct[(i + 1) * len(distinct) // (count + 1)] for i in range(count))


def _differences(
    before: pl.DataFrame,
    after: pl.DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    cut: datetime | None,
    hidden: Collection[str],
) -> list[Leak]:
    one, other = ("with", "without") if cut else ("the first time", "the second time")
    lost, come = before.join(after, on=key, how="anti"), after.join(before, on=key, how="anti")
    leaks: list[Leak] = []
    secret = {name for column in hidden for name in (column, f"{column}__after")}

    def rows_of(frame: pl.DataFrame, *names: str) -> list[tuple[object, ...]]:
        masked = [pl.lit(HIDDEN).alias(name) if name in secret else pl.col(name) for name in names]
        return frame.head(_EXAMPLES).select(masked).rows()

    if len(lost) or len(come):
        one_row, other_row = ("with the future", "without it") if cut else (one, other)
        examples = (
            *(f"{_name(row)}: only {one_row}" for row in rows_of(lost, *key)),
            *(f"{_name(row)}: only {other_row}" for row in rows_of(come, *key)),
        )
        leaks.append(Leak(cut=cut, column=MISSING_ROW, rows=len(lost) + len(come), examples=examples))
    both = before.join(after, on=key, how="inner", suffix="__after", maintain_order="left")
    for column in columns:
        differs = both.filter(pl.col(column).ne_missing(pl.col(f"{column}__after")))
        if len(differs):
            shown = rows_of(differs, *key, column, f"{column}__after")
            examples = tuple(
                f"{_name(row[:-2])}: {_said(row[-2])} {one}, {_said(row[-1])} {other}" for row in shown
            )
            leaks.append(Leak(cut=cut, column=column, rows=len(differs), examples=examples))
    return leaks


def _name(row: Sequence[object]) -> str:
    return " ".join(str(value) for value in row)


def _said(value: object) -> object:
    """Nobody reads the bytes of a picture."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else value

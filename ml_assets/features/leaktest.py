"""The leakage test: hide what was not yet known, rebuild, and require the same rows.

Here: how a table declares when its facts became known, cutting tables by that, and comparing two builds. It
works for any feature function, and it also guards against skew between training and serving: the rebuild
after a cut sees what serving would have seen. Not here: reading tables, and printing (cli).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import polars as pl

from ml_assets.sections import Section

Build = Callable[[Mapping[str, pl.DataFrame], date, date], pl.DataFrame]
"""A feature function: `(inputs, first, last) -> rows`."""

MISSING_ROW = "(row)"
"""Stands for the column where a whole row is in one build and not in the other."""

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
    """A column whose past values changed when the future was hidden."""

    cut: datetime
    column: str
    """`MISSING_ROW` where rows came or went."""
    rows: int
    """How many of the rows predicted at or before `cut` differ."""
    examples: tuple[str, ...]
    """Key, value with the future present, value without."""


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
        """One line a leak, or one line that says what was compared."""
        if self.ok:
            return (
                f"no leak: {self.rows_compared} rows × {len(self.columns_compared)} columns are the same "
                f"with the future hidden at {len(self.cuts)} moments"
            )
        return "\n".join(
            f"{leak.column} knows what happened after {leak.cut:%Y-%m-%d %H:%M} UTC: "
            f"{leak.rows} rows differ, for example {'; '.join(leak.examples)}"
            for leak in self.leaks
        )


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
) -> LeakReport:
    """Build `first`..`last` from all of `inputs`, then once per cut from what was known then, and compare.

    Rows with `predicted_at` at or before a cut must be the same in every column but `labels`. `known` names
    every table of `inputs`; an empty list says that a table was always known. `cuts` are moments in UTC, or
    how many to choose, spread evenly over the moments of prediction. Examples show no value of a `hidden` column.

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
    moments = _spread(full[predicted_at], cuts) if isinstance(cuts, int) else tuple(cuts)
    columns = tuple(name for name in full.columns if name not in {*key, *labels})
    leaks: list[Leak] = []
    rows_compared = 0
    for cut in moments:
        before = full.filter(pl.col(predicted_at) <= cut)
        if before.is_empty():
            raise LeakTestError(
                f"no row was predicted at or before {cut}: choose cuts within {first}..{last}"
            )
        rebuilt = build(
            {table: known_by(rows, known[table], cut) for table, rows in inputs.items()}, first, last
        )
        rows_compared += before.height
        leaks += _differences(before, rebuilt.filter(pl.col(predicted_at) <= cut), key, columns, cut, hidden)
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
    cut: datetime,
    hidden: Collection[str],
) -> list[Leak]:
    lost, come = before.join(after, on=key, how="anti"), after.join(before, on=key, how="anti")
    leaks: list[Leak] = []
    secret = {name for column in hidden for name in (column, f"{column}__after")}

    def rows_of(frame: pl.DataFrame, *names: str) -> list[tuple[object, ...]]:
        masked = [pl.lit(HIDDEN).alias(name) if name in secret else pl.col(name) for name in names]
        return frame.head(_EXAMPLES).select(masked).rows()

    if len(lost) or len(come):
        examples = (
            *(f"{_name(row)}: only with the future" for row in rows_of(lost, *key)),
            *(f"{_name(row)}: only without it" for row in rows_of(come, *key)),
        )
        leaks.append(Leak(cut=cut, column=MISSING_ROW, rows=len(lost) + len(come), examples=examples))
    both = before.join(after, on=key, how="inner", suffix="__after", maintain_order="left")
    for column in columns:
        differs = both.filter(pl.col(column).ne_missing(pl.col(f"{column}__after")))
        if len(differs):
            shown = rows_of(differs, *key, column, f"{column}__after")
            examples = tuple(
                f"{_name(row[:-2])}: {_said(row[-2])} with, {_said(row[-1])} without" for row in shown
            )
            leaks.append(Leak(cut=cut, column=column, rows=len(differs), examples=examples))
    return leaks


def _name(row: Sequence[object]) -> str:
    return " ".join(str(value) for value in row)


def _said(value: object) -> object:
    """Nobody reads the bytes of a picture."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else value

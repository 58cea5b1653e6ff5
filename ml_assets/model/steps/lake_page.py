"""Page about the difference of the lake between two commits, for a terminal and as HTML. Arranges; compares nothing."""

from collections.abc import Iterator, Sequence

from ml_assets.data.tables.lake_difference import LakeDifference, PartitionDifference
from ml_assets.foundation.reports.page import Block, Bullets, Chapter, Grid, Paragraph, WrittenPage
from resources.words import counted, name_some

MOST_PARTITIONS = 20
"""Partitions of a table that the page shows: those with most other rows."""
MOST_STATISTICS = 20
"""Statistics of a table that the page shows: those of its newest partitions."""


def difference_of_lake(found: LakeDifference, title: str, added: Sequence[Chapter] = ()) -> WrittenPage:
    """Return the page about `found`. The chapters `added` follow those of the tables."""
    tables = found.tables
    total = counted(len(found.partitions), "partition")
    return WrittenPage(
        title=title,
        about=f"commit {found.before[:12]} · commit {found.after[:12]}",
        headline=f"{total} in {counted(len(tables), 'table')} differ." if tables else "No partition differs.",
        tone="undecided" if tables else "blessed",
        chapters=(*(Chapter(table, tuple(_table(some))) for table, some in tables.items()), *added),
    )


def _table(found: Sequence[PartitionDifference]) -> Iterator[Block]:
    yield Bullets(tuple(_counts(found)))
    both = [one for one in found if one.kind in ("rows", "manifest")]
    if both:
        both.sort(key=lambda one: (-_other_rows(one), one.key))
        columns = ("partition", "before", "after", "came", "went", "changed", "columns", "why")
        rows = tuple(_row(one) for one in both[:MOST_PARTITIONS])
        yield Grid(columns, rows, numbers=frozenset(range(1, 6)))
        if len(both) > MOST_PARTITIONS:
            yield Paragraph(f"{len(both) - MOST_PARTITIONS} partitions more with fewer other rows.")
    statistics = [(one.key, each) for one in reversed(found) for each in one.statistics]
    if statistics:
        yield Grid(
            ("partition", "column", "statistic", "before", "after"),
            tuple(
                (key, each.column, each.statistic, _value(each.before), _value(each.after))
                for key, each in statistics[:MOST_STATISTICS]
            ),
            numbers=frozenset((3, 4)),
        )
        if len(statistics) > MOST_STATISTICS:
            yield Paragraph(f"{len(statistics) - MOST_STATISTICS} statistics more: see --json.")


def _counts(found: Sequence[PartitionDifference]) -> Iterator[str]:
    words = {
        "came": "only after",
        "went": "only before",
        "rows": "with other rows",
        "manifest": "with the same rows, made by other code or rules",
    }
    for kind, said in words.items():
        if keys := [one.key for one in found if one.kind == kind]:
            yield f"{counted(len(keys), 'partition')} {said}: {name_some(keys, 3)}"


def _row(one: PartitionDifference) -> tuple[str, ...]:
    change = one.change
    counts = (
        ("not read", "not read", "not read")
        if change is None and one.kind == "rows"
        else tuple(str(n) for n in ((change.came, change.went, change.changed) if change else (0, 0, 0)))
    )
    columns = [f"{name} ({number})" for name, number in change.columns.items()] if change else []
    return (one.key, str(one.before), str(one.after), *counts, name_some(columns, 4), one.why)


def _other_rows(one: PartitionDifference) -> int:
    return one.change.came + one.change.went + one.change.changed if one.change else 0


def _value(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)

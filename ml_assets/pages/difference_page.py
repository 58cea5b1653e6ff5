"""Pages about differences, for a terminal and as HTML: two versions, two commits of the lake, an environment and main.

Arranges; compares nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ml_assets.data.tables.environments import EnvironmentChanges, conflict_in_words
from ml_assets.data.tables.history.diff import LakeDifference, PartitionDifference, TableChange
from ml_assets.foundation.reports.page import Block, Bullets, Chapter, Grid, Paragraph, WrittenPage
from ml_assets.foundation.reports.text import count, number
from ml_assets.model.evaluation.comparison.model_difference import MetricChange
from ml_assets.model.evaluation.comparison.sentences import gain, with_interval
from ml_assets.pages.version_difference import EnvironmentModel, VersionDifference
from resources.words import counted, name_some

MOST_DAYS = 20
"""Changed partitions that the page shows: those with most other rows."""
MOST_SLICES = 12
"""Slices that the page shows: those whose metric moved most, measured in half-widths of its interval."""


def difference_page(found: VersionDifference) -> WrittenPage:
    """Return the page: what moved, and everything that differs between the two versions."""
    before, after = found.before, found.after
    return WrittenPage(
        title=f"{before.version.model}: {before.name} to {after.name}",
        about=(
            f"evaluation {before.evaluation.name} ({before.evaluation.partition}) · "
            f"evaluation {after.evaluation.name} ({after.evaluation.partition})"
        ),
        headline=headline_of(found),
        tone=_tone(found),
        chapters=(
            *metric_chapters(found),
            Chapter("Rows", tuple(_rows(found))),
            Chapter("Feature code and contracts", tuple(_declarations(found))),
            Chapter("Model and settings", tuple(_settings(found))),
        ),
    )


def headline_of(found: VersionDifference) -> str:
    """Return the sentence for someone who reads nothing else."""
    if found.measured is None:
        return "Not comparable: " + " ".join(found.cannot_score)
    moved = [
        f"{one.metric.label} is {'better' if direction > 0 else 'worse'}"
        for one in found.measured.overall
        if (direction := _direction(one))
    ]
    where = f"on {found.scored_on}"
    return f"{', '.join(moved)}, {where}." if moved else f"No metric moved more than by chance, {where}."


def _tone(found: VersionDifference) -> str:
    directions = [] if found.measured is None else [_direction(one) for one in found.measured.overall]
    if any(one < 0 for one in directions):
        return "rejected"
    return "blessed" if any(one > 0 for one in directions) else "undecided"


def _direction(one: MetricChange) -> int:
    """Return 1 if the whole interval says better, −1 if it says worse, 0 if it contains zero."""
    low, high = one.improvement.low, one.improvement.high
    return 0 if low is None or high is None else int(low > 0) - int(high < 0)


def metric_chapters(found: VersionDifference) -> Iterator[Chapter]:
    """Yield the chapters about both versions on the same rows, or else what their reports say."""
    measured = found.measured
    notes = (*found.seen, *(() if measured is None else measured.left_out))
    seen = [Bullets(notes)] if notes else []
    if measured is None:
        yield Chapter("Metrics", (Bullets(found.cannot_score), *seen))
        yield from _reported(found)
        return
    by = f" weighted by {measured.weight}" if measured.weight else ""
    note = (
        f"{counted(measured.rows, 'row')}{by}, the same for both; + is better; {measured.confidence:.0%} intervals "
        f"over {measured.blocks} blocks by {measured.bootstrap_unit}"
    )
    yield Chapter("Metrics", (_grid("metric", measured.overall), *seen), note)
    if measured.slices:
        moved = sorted(measured.slices, key=_by_chance)[:MOST_SLICES]
        label = measured.overall[0].metric.label
        shown = f"{len(moved)} of {len(measured.slices)} slices"
        note = f"{label}; {shown}, most certain change first; intervals hold jointly"
        yield Chapter("Slices", (_grid("slice", moved),), note)


def _reported(found: VersionDifference) -> Iterator[Chapter]:
    """Yield the metrics that the evaluations measured: the only ones if a version cannot be scored any more."""

    before, after = (
        {} if one.report is None else one.report.evaluation.overall.metrics["challenger"]
        for one in (found.before, found.after)
    )
    if before or after:
        rows = tuple(
            (name, *(with_interval(one[name]) if name in one else "–" for one in (before, after)))
            for name in {**before, **after}
        )
        note = "each on the holdout of its own evaluation: other rows, so a change of the value says little"
        yield Chapter("Metrics of their reports", (Grid(("metric", "before", "after"), rows),), note)


def _by_chance(one: MetricChange) -> float:
    """Return minus the change in half-widths; the smallest is the most certain change."""
    value, high = one.improvement.value, one.improvement.high
    if value is None or high is None or high == value:
        return 0.0
    return -abs(value) / (high - value)


def _grid(first: str, changes: list[MetricChange] | tuple[MetricChange, ...]) -> Grid:
    words = {1: "better", 0: "", -1: "worse"}
    rows = tuple(
        (
            str(one.slice or one.metric.label),
            count(one.rows),
            number(one.before),
            number(one.after),
            gain(one.improvement, relative=False),
            words[_direction(one)],
        )
        for one in changes
    )
    return Grid((first, "rows", "before", "after", "improvement", ""), rows, numbers=frozenset({1, 2, 3}))


def _rows(found: VersionDifference) -> Iterator[Block]:
    windows = [None if one.known is None else one.known.windows for one in (found.before, found.after)]
    splits = tuple(
        (split, *(" to ".join(one[split]) if one and split in one else "unknown" for one in windows))
        for split in ("train", "validation", "holdout")
    )
    yield Grid(("split", "before", "after"), splits)
    if found.data is None:
        yield Paragraph(f"Rows cannot be compared: {found.data_lost}.")
        if found.objections:
            yield Bullets(found.objections)
        return
    yield Bullets((*_sentences(found.data), *found.objections))
    worst = sorted(found.data.changed, key=lambda one: -(one.came + one.went + one.changed))[:MOST_DAYS]
    if worst:
        rows = tuple(
            (one.key, *(count(n) for n in (one.before, one.after, one.came, one.went, one.changed)), one.why)
            for one in sorted(worst, key=lambda one: one.key)
        )
        columns = ("partition", "rows before", "after", "came", "went", "changed", "why")
        yield Grid(columns, rows, numbers=frozenset({1, 2, 3, 4, 5}))


def _sentences(data: TableChange) -> Iterator[str]:
    for some, verb in ((data.came, "came"), (data.went, "went")):
        if some:
            rows, keys = count(sum(some.values())), name_some(sorted(some), 6)
            yield f"{counted(len(some), 'partition')} {verb} ({rows} rows): {keys}."
    told = f", {count(len(data.changed))} have other content" if data.changed else ", and no other changed"
    yield f"{counted(data.same, 'partition')} in both windows have the same content{told}."
    if len(data.changed) > MOST_DAYS:
        yield f"The table shows the {MOST_DAYS} partitions with most other rows."


def _declarations(found: VersionDifference) -> Iterator[Block]:
    if found.data is not None and found.data.declarations:
        yield Bullets(found.data.declarations)
    else:
        yield Paragraph("No change." if found.data is not None else "Unknown, as the rows.")


def _settings(found: VersionDifference) -> Iterator[Block]:
    if found.columns:
        yield Bullets(found.columns)
    rows = tuple(
        (key, *("–" if value is None else str(value) for value in pair))
        for key, pair in found.settings.items()
    )
    if rows:
        yield Grid(("setting", "before", "after"), rows)
    elif found.before.known is not None and found.after.known is not None:
        yield Paragraph("No setting changed.")
    if found.unknown:
        yield Bullets(found.unknown)
    weights = [None if one.known is None else one.known.weights for one in (found.before, found.after)]
    if weights[0] is not None and weights[0] == weights[1]:
        yield Paragraph("Both versions have the same weights.")


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


LONGEST_COMMENT = 60_000
"""Characters of a comment. GitHub allows 65,536."""


def environment_page(
    changes: EnvironmentChanges, difference: LakeDifference, models: Sequence[EnvironmentModel]
) -> WrittenPage:
    """Return the page: whether it can be merged, the models trained there, and the partitions that differ."""
    one = changes.environment
    page = difference_of_lake(difference, f"Environment {one.name} against main")
    conflicts = (
        (Chapter("Conflicts", (Paragraph(conflict_in_words(one.name, changes.conflicts)),)),)
        if changes.conflicts
        else ()
    )
    return replace(
        page,
        about=(
            f"created by {one.author} on {one.created_at:%Y-%m-%d %H:%M} UTC · base {one.base[:12]} · "
            f"head {changes.head[:12]}"
        ),
        tone="rejected" if conflicts else page.tone,
        chapters=(*conflicts, *(each for model in models for each in _model(model)), *page.chapters),
    )


def as_comment(page: WrittenPage, name: str) -> str:
    """Return the page as Markdown for a comment of a pull request.

    Its first line is invisible: CI finds the comment by it and replaces it. Chapters beyond `LONGEST_COMMENT` are left
    out and counted.
    """
    marker = f"<!-- ml-assets env diff {name} -->\n"
    kept = page
    while len(text := kept.to_markdown()) > LONGEST_COMMENT and kept.chapters:
        kept = replace(kept, chapters=kept.chapters[:-1])
    left_out = len(page.chapters) - len(kept.chapters)
    more = f"\n{counted(left_out, 'chapter')} more: `ml-assets env diff {name}`\n" if left_out else ""
    return marker + text + more


def _model(one: EnvironmentModel) -> Iterator[Chapter]:
    against = f"against {one.main} of main" if one.main else "main has no version of it"
    blocks: list[Block] = [
        Bullets((f"Trained for {one.partition}; {against}.", f"Gates there: {one.decision}."))
    ]
    if one.measured is not None:
        blocks.append(Paragraph(headline_of(one.measured)))
    elif one.metrics:
        rows = tuple((name, *pair) for name, pair in one.metrics.items())
        blocks.append(Grid(("metric", "main", "environment"), rows))
    note = "each on its own holdout: other rows, so a change of the value says little" if one.metrics else ""
    yield Chapter(f"Model {one.model}", tuple(blocks), note)
    if one.measured is not None:
        for each in metric_chapters(one.measured):
            yield replace(each, title=f"{one.model}: {each.title}")

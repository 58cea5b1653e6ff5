"""Page about an environment against main: conflicts, models, tables. Arranges; compares nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ml_assets.data.tables.environment_merge import conflict_in_words
from ml_assets.data.tables.environments import EnvironmentChanges
from ml_assets.data.tables.lake_difference import LakeDifference
from ml_assets.foundation.reports.page import Block, Bullets, Chapter, Grid, Paragraph, WrittenPage
from ml_assets.model.steps.difference_page import headline_of, metric_chapters
from ml_assets.model.steps.environment_models import EnvironmentModel
from ml_assets.model.steps.lake_page import difference_of_lake
from resources.words import counted

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

"""Chapter about the slices on which a model is worst: of the report, the asset page and the model card."""

from collections.abc import Iterator

from ml_assets.foundation.reports.numbers import count, number
from ml_assets.foundation.reports.written_page import Block, Chapter, Grid, Paragraph
from ml_assets.model.evaluation import sentences
from ml_assets.model.evaluation.evaluation_document import Role, WorstSlice, WorstSlices
from resources.words import counted


def worst_slices_chapters(found: WorstSlices | None) -> Iterator[Chapter]:
    """Yield the chapter, unless nothing was looked for. It says how many slices were looked at if none is worse."""
    if found is None:
        return
    yield Chapter(
        "Worst slices found",
        tuple(_blocks(found)),
        f"mean {found.loss} of a row, here and on all other rows; {found.confidence:.0%} intervals, which hold jointly "
        "for all slices looked at",
    )


def _blocks(found: WorstSlices) -> Iterator[Block]:
    looked_at = (
        f"{counted(found.candidates, 'slice')} of at least {count(found.least_rows)} rows, of one or two of "
        f"{counted(len(found.columns), 'column')}, were looked at"
    )
    if found.paired < len(found.columns):
        looked_at += f" (pairs of the first {found.paired})"
    if not found.worse:
        yield Paragraph(f"{looked_at}: none is worse than the other rows by more than chance.")
        return
    listed = (
        "; the most certain of them that share few rows are listed" if found.worse > len(found.shown) else ""
    )
    yield Paragraph(
        f"{looked_at}; {count(found.worse)} {'is' if found.worse == 1 else 'are'} worse than the other rows{listed}. "
        "Rows can be hard for every model: compare with the others on the same rows."
    )
    others: list[Role] = [role for role in found.shown[0].losses if role != "challenger"]
    columns = ("slice", "rows", "this model", "on other rows", "difference", *others)
    rows = tuple(
        (
            name_of(one),
            count(one.rows),
            number(one.losses["challenger"]),
            number(one.elsewhere),
            sentences.gain(one.difference, relative=False),
            *(number(one.losses[role]) for role in others),
        )
        for one in found.shown
    )
    yield Grid(columns, rows, numbers=frozenset({1, 2, 3, *range(5, 5 + len(others))}))


def name_of(one: WorstSlice) -> str:
    """Return the slice in words: `dep_hour=18 to 23, origin=EWR`."""
    return ", ".join(f"{column}={part}" for column, part in one.where)

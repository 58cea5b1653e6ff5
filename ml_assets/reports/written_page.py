"""Page of a few chapters that is written twice: as Markdown, readable in a terminal, and as HTML without other files.

For pages of text and tables, such as a model card. A report with a layout of its own has a template (`page`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ml_assets.reports.page import rendered


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str
    kind: Literal["paragraph"] = "paragraph"


@dataclass(frozen=True)
class Bullets:
    """List of sentences."""

    items: tuple[str, ...]
    kind: Literal["bullets"] = "bullets"


@dataclass(frozen=True)
class Actions:
    """List of sentences, each with its next command on a line of its own; without one if the command is empty."""

    items: tuple[tuple[str, str], ...]
    kind: Literal["actions"] = "actions"


@dataclass(frozen=True)
class Grid:
    """Table of texts. Columns whose number is in `numbers` are aligned to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True)
class Drawing:
    """SVG in base64 with its caption. Markdown leaves it out."""

    name: str
    svg: str
    caption: str
    kind: Literal["drawing"] = "drawing"


_TAG = re.compile(r"(\\*)<(?=[A-Za-z/!?])")
"""Beginning of an HTML tag; other `<` stay as they are. Backslashes before it would undo its escape."""
_BAR = re.compile(r"(\\*)\|")
"""End of a cell, with the backslashes before it."""

Block = Paragraph | Bullets | Actions | Grid | Drawing


@dataclass(frozen=True)
class Chapter:
    """Blocks below a heading."""

    title: str
    blocks: tuple[Block, ...]
    note: str = ""
    """Explanation beside the heading: units, or how to read the figures."""

    def to_markdown(self) -> list[str]:
        """Return the lines of the chapter."""
        lines = [f"## {_text(self.title)}", ""]
        if self.note:
            lines += [f"_{_text(self.note)}_", ""]
        written = [some for block in self.blocks if (some := _markdown(block))]
        for number, some in enumerate(written):
            lines += ([""] if number else []) + some
        return lines


@dataclass(frozen=True)
class WrittenPage:
    """Page with a headline sentence and chapters."""

    title: str
    about: str
    """Line below the title: version, partition, evaluation."""
    headline: str
    """The sentence for someone who reads nothing else."""
    tone: str
    """`blessed`, `undecided` or `rejected`: colour of the headline."""
    chapters: tuple[Chapter, ...]
    others: tuple[tuple[str, str], ...] = ()
    """(label, address) of pages beside this one, relative to it. Markdown leaves them out."""

    def to_markdown(self) -> str:
        """Return the page as Markdown. Columns of tables are padded, so that it reads well in a terminal."""
        lines = [f"# {_text(self.title)}", "", _text(self.about), "", f"**{_text(self.headline)}**"]
        for chapter in self.chapters:
            lines += ["", *chapter.to_markdown()]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Return the page as HTML. A pure function: the same page gives the same bytes."""
        return rendered("ml_assets.reports", "written_page.html.j2", {}, page=self)


def _markdown(block: Block) -> list[str]:
    match block:
        case Paragraph():
            return [_text(block.text)]
        case Bullets():
            return [f"* {_text(item)}" for item in block.items]
        case Actions():
            return [line for item in block.items for line in _action(*item)]
        case Grid():
            return _table(block)
        case Drawing():
            return []


def _action(what: str, command: str) -> list[str]:
    """Return the lines of a sentence, with its command as a block of code: nothing in it is markup, and it copies."""
    said = f"* {_text(what)}"
    return [said, "", f"      {' '.join(command.split())}", ""] if command else [said]


def _table(grid: Grid) -> list[str]:
    rows = [[_cell(cell) for cell in row] for row in (grid.columns, *grid.rows)]
    # Narrower rows of dashes are not a table for every reader of Markdown.
    widths = [max(3, *(len(row[at]) for row in rows)) for at in range(len(grid.columns))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if at in grid.numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [f"{'-' * (width - 1)}{':' if at in grid.numbers else '-'}" for at, width in enumerate(widths)]
    return [line(rows[0]), line(rule), *(line(row) for row in rows[1:])]


def _cell(text: str) -> str:
    return _BAR.sub(r"\1\1\\|", _text(text))


def _text(text: str) -> str:
    """Return text on one line in which no HTML begins."""
    return _TAG.sub(r"\1\1\\<", " ".join(text.split("\n")))

"""Page of a few chapters that is written twice: as Markdown, readable in a terminal, and as HTML without other files.

For pages of text and tables, such as a model card. A report with a layout of its own has a template (`page`).
"""

from dataclasses import dataclass
from typing import Literal

from ml_assets.foundation.reports.page import rendered
from ml_assets.foundation.reports.plain_text import in_markdown, table_in_markdown


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

    def to_markdown(self) -> list[str]:
        """Return the lines of the list."""
        return [f"* {in_markdown(item)}" for item in self.items]


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
    has_addresses: bool = False
    """True if the platform wrote the cells: those that are addresses become links. A name from data never does."""
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True)
class Drawing:
    """SVG in base64 with its caption. Markdown leaves it out."""

    name: str
    svg: str
    caption: str
    kind: Literal["drawing"] = "drawing"


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
        lines = [f"## {in_markdown(self.title)}", ""]
        if self.note:
            lines += [f"_{in_markdown(self.note)}_", ""]
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
        lines = [
            f"# {in_markdown(self.title)}",
            "",
            in_markdown(self.about),
            "",
            f"**{in_markdown(self.headline)}**",
        ]
        for chapter in self.chapters:
            lines += ["", *chapter.to_markdown()]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Return the page as HTML. A pure function: the same page gives the same bytes."""
        return rendered("ml_assets.foundation.reports", "written_page.html.j2", {}, page=self)


def _markdown(block: Block) -> list[str]:
    match block:
        case Paragraph():
            return [in_markdown(block.text)]
        case Bullets():
            return block.to_markdown()
        case Actions():
            return [line for item in block.items for line in _action(*item)]
        case Grid():
            return table_in_markdown(block.columns, block.rows, block.numbers)
        case Drawing():
            return []


def _action(what: str, command: str) -> list[str]:
    """Return the lines of a sentence, with its command as a block of code: nothing in it is markup, and it copies."""
    said = f"* {in_markdown(what)}"
    return [said, "", f"      {' '.join(command.split())}", ""] if command else [said]

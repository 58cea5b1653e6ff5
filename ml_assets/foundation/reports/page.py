"""Pages of reports, and their pictures: one look, drawn without pyplot, with names from data as plain text.

`rendered` fills the template of a stage within the frame `page.html.j2`; `parts.html.j2` has a picture, a lineage and a
chapter. `WrittenPage` has no template: a page of text and tables, such as a model card, written twice, as Markdown and
as HTML without other files. matplotlib is imported for the first picture. Its style is global to the process while a
picture is drawn, so only one thread at a time may draw.
"""

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ml_assets.foundation.reports.text import count, in_markdown, number, share, table_in_markdown, visible

INK, GRID = "#2b3138", "#e3e6ea"
Axes = Any
"""matplotlib.axes.Axes; Any, because its annotations are incomplete."""
Draw = Callable[[Axes], None]
"""Draws one picture."""
Form = Literal["png", "svg"]
_COLOURS = 64
SIZE = (4.2, 3.3)
"""Width and height of a picture in inches; a PNG has 100 pixels an inch."""


def encoded(draw: Draw, form: Form, size: tuple[float, float] = SIZE) -> str:
    """Return the picture that `draw` draws, in base64. Equal drawings give equal bytes."""
    import matplotlib.figure

    style: dict[Any, Any] = {
        "font.family": "DejaVu Sans",  # part of matplotlib, so the picture is the same everywhere
        "font.size": 8,
        "axes.edgecolor": "#b9bfc7",
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.titlesize": 9,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "legend.fontsize": 7.5,
        "svg.hashsalt": "ml-assets",
        "text.parse_math": False,  # a price band, "$0 - $60", is no formula
    }
    drawing: Any = matplotlib
    with drawing.rc_context(style):
        figure: Any = matplotlib.figure.Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        buffer = io.BytesIO()
        # No creation date, so that equal drawings give equal files.
        figure.savefig(buffer, format=form, dpi=100, metadata={"Date": None} if form == "svg" else None)
    drawn = buffer.getvalue() if form == "svg" else _few_colours(buffer)
    return base64.b64encode(drawn).decode()


def _few_colours(png: io.BytesIO) -> bytes:
    """Return the PNG with a palette, a third of the size: the metadata of an asset holds it."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(png).convert("RGB").quantize(_COLOURS).save(small, format="png", optimize=True)
    return small.getvalue()


def as_markdown(pngs: Mapping[str, str]) -> list[str]:
    """Return PNGs in base64, by name, as lines of Markdown for an asset page."""
    alt = {ord("["): "(", ord("]"): ")"}
    return [
        f"![{in_markdown(name.translate(alt))}](data:image/png;base64,{data})" for name, data in pngs.items()
    ]


def rendered(package: str, template: str, filters: dict[str, Any], **facts: Any) -> str:
    """Return the HTML of `template`, a file beside the modules of `package`. Equal facts give equal bytes.

    Text is escaped, and its controls are visible. A fact that the template needs and did not get is an error.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    # Any, because jinja's annotations do not cover the filters.
    environment: Any = Environment(
        loader=ChoiceLoader([PackageLoader(one, "") for one in (package, __package__ or "")]),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "share": share, "count": count, **filters}
    return environment.get_template(template).render(**facts)


def _shown(value: Any) -> Any:
    """Return what a page shows for a value. HTML that a template made itself stays as it is."""
    return visible(value) if type(value) is str else value


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
    """SVG with its caption. Markdown leaves it out, and does not draw it: matplotlib takes a second to load."""

    name: str
    draw: Callable[[], str] = field(compare=False)
    """Returns the SVG in base64."""
    caption: str
    kind: Literal["drawing"] = "drawing"

    @cached_property
    def svg(self) -> str:
        """The SVG in base64, drawn at the first use."""
        return self.draw()


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
        for at, some in enumerate(written):
            lines += ([""] if at else []) + some
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
        return rendered(__package__ or "", "written_page.html.j2", {}, page=self)


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

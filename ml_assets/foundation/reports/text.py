"""Text of a page: figures, and names from data, which must not become markup.

`visible` is for every form of a name. HTML then escapes it, `in_markdown` writes it as Markdown, `label` as text of a
picture, and `in_terminal` keeps the lines of a command. Not here: pages and pictures (`page`).
"""

import math
import re
from collections.abc import Callable, Sequence


def number(value: float | None, *, signed: bool = False) -> str:
    """Format a measurement: four decimals, fewer if it is large; `–` if undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    return format(value, f"{'+' if signed else 'z'},.{decimals(value)}f").replace("-", "−")


def decimals(value: float) -> int:
    """Return the number of decimals with which `number` formats a value of this size."""
    size = abs(value)
    return 4 if size < 10 else 3 if size < 100 else 2 if size < 1000 else 0


def share(value: float | None, *, signed: bool = False) -> str:
    """Format a fraction in percent with two decimals; `–` if undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    return format(100 * value, "+.2f" if signed else ".2f").replace("-", "−") + "\u00a0%"


def count(number: int) -> str:
    """Format a whole number: `53,991`."""
    return f"{number:,}"


LONGEST_LABEL = 24
"""Characters of a label in a picture."""
_NOT_VISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Controls, and characters that hide text or turn its direction around. A terminal obeys the first, a page the others;
an SVG with one is not valid."""
_INLINE = re.compile(
    r"""\\(?=[!-/:-@\[-`{-~]|$)   # a backslash that escapes
    | [`*$~]                      # code, emphasis, formulas, strokes
    | \](?=[(\[:])               # a link
    | (?<![^\W_])_+ | _+(?![^\W_])  # emphasis; underscores within a word are text
    | <(?=[A-Za-z/!?])            # a tag
    | &(?=\#?\w+;)                # an entity
    | \#+$                        # the end of a heading""",
    re.VERBOSE,
)
_BLOCK = re.compile(r"[#>+=\[-]|\d+(?=[.)])")
"""Beginning of a heading, a quotation, a list, a line, or the definition of a link."""


def visible(text: str) -> str:
    """Return text on one line. Each control and each character that turns text around becomes U+FFFD."""
    return _NOT_VISIBLE.sub("\ufffd", " ".join(text.expandtabs(1).splitlines()))


def in_terminal(text: str) -> str:
    """Return lines of text for a terminal: with their ends and tabs, without anything that the terminal obeys."""
    return "\n".join(
        "\t".join(_NOT_VISIBLE.sub("\ufffd", part) for part in line.removesuffix("\r").split("\t"))
        for line in text.split("\n")
    )


def in_markdown(text: str) -> str:
    """Return text as a line of Markdown that shows exactly its visible characters."""
    escaped = _cell(text)
    begin = _BLOCK.match(escaped)
    if begin is None:
        return escaped
    at = begin.end() if begin[0].isdigit() else 0
    return f"{escaped[:at]}\\{escaped[at:]}"


def table_in_markdown(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int] = frozenset()
) -> list[str]:
    """Return the lines of a table, padded to read well in a terminal. Columns in `numbers` are aligned to the right."""
    cells = [[_cell(one).replace("|", r"\|") for one in row] for row in (columns, *rows)]
    # Narrower rows of dashes are not a table for every reader of Markdown.
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        sides: list[Callable[[str, int], str]] = [
            str.rjust if at in numbers else str.ljust for at in range(len(columns))
        ]
        return f"| {' | '.join(side(*one) for side, one in zip(sides, zip(row, widths, strict=True), strict=True))} |"

    rule = [f"{'-' * (width - 1)}{':' if at in numbers else '-'}" for at, width in enumerate(widths)]
    return [line(cells[0]), line(rule), *map(line, cells[1:])]


def label(text: object) -> str:
    """Return text for a picture: short, and never empty. The pictures' style takes `$` as it is."""
    shown = visible(str(text))
    if len(shown) > LONGEST_LABEL:
        shown = f"{shown[: LONGEST_LABEL - 1]}…"
    if not shown.strip():
        return "(empty)"
    return f"\u200a{shown}" if shown.startswith("_") else shown  # matplotlib leaves `_…` out of legends


def _cell(text: str) -> str:
    return _INLINE.sub(lambda found: "".join(f"\\{one}" for one in found[0]), visible(text).strip())

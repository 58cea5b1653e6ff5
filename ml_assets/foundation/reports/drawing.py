"""Pictures of reports: one style, drawn without pyplot, in base64. Names from data are drawn as `plain_text.label`.

matplotlib is imported for the first picture. Its style is global to the process while a picture is drawn, so only one
thread at a time may draw.
"""

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ml_assets.foundation.reports.plain_text import in_markdown

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
    import matplotlib
    from matplotlib.figure import Figure

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
        figure: Any = Figure(figsize=size, layout="constrained")
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

"""Output of a command that makes a page: Markdown on the terminal, or HTML in a file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.problems import writing_to
from ml_assets.cli.project import say

if TYPE_CHECKING:
    from ml_assets.foundation.reports.page import WrittenPage

html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page as HTML to this file instead of printing Markdown.",
)
"""Option of such a command, for `show`."""


def show(page: "WrittenPage", html: Path | None) -> None:
    """Print `page` as Markdown, or write it as HTML to the file `html`."""
    if html is None:
        say(page.to_markdown().rstrip())
    else:
        with writing_to(html):
            html.write_text(page.to_html(), encoding="utf-8")
        say(f"wrote {html}")

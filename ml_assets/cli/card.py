"""`ml-assets card`: print the model card of a registered version."""

from pathlib import Path

import click

from ml_assets.cli.project import Project, say
from ml_assets.cli.registered import registered


@click.command("card", short_help="Print the model card of a version: use, data, metrics, limits, lineage.")
@click.argument("model")
@click.argument("version", type=int, required=False)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the card as HTML to this file instead of printing Markdown.",
)
def command(model: str, version: int | None, html: Path | None) -> None:
    """Print the model card of VERSION of MODEL as Markdown. Default: the version in production, or else the newest.

    Changes nothing.
    """
    from ml_assets.pipeline.model_card import card_of

    with Project.to_read() as project:
        page = card_of(project.platform, registered(project, model, version))
    if html is None:
        say(page.to_markdown().rstrip())
    else:
        html.write_text(page.to_html(), encoding="utf-8")
        say(f"wrote {html}")

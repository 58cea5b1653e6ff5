"""`ml-assets card`: print the model card of a registered version."""

from pathlib import Path

import click

from ml_assets.cli.project import Project
from ml_assets.cli.registered import VERSION, registered
from ml_assets.cli.written import html_option, show


@click.command("card", short_help="Print the model card of a version: use, data, metrics, limits, lineage.")
@click.argument("model")
@click.argument("version", type=VERSION, required=False)
@html_option
def command(model: str, version: int | None, html: Path | None) -> None:
    """Print the model card of VERSION of MODEL as Markdown. Default: the version in production, or else the newest.

    Changes nothing.
    """
    from ml_assets.model.steps.record import card_of

    with Project.to_read() as project:
        page = card_of(project.platform, registered(project, model, version))
    show(page, html)

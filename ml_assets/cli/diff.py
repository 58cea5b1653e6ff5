"""`ml-assets diff`: show why a metric moved between two versions of a model."""

from pathlib import Path

import click

from ml_assets.cli.project import Project, say
from ml_assets.cli.registered import registered


@click.command("diff", short_help="Show what differs between two versions, and what moved on the same rows.")
@click.argument("model")
@click.argument("before", metavar="V1", type=int)
@click.argument("after", metavar="V2", type=int)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page as HTML to this file instead of printing it.",
)
def command(model: str, before: int, after: int, html: Path | None) -> None:
    """Compare versions V1 and V2 of MODEL: rows by day, feature code, settings, and metrics on the same rows.

    Both are scored on the holdout of the version with the later one. Changes nothing.
    """
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.pipeline.difference_page import difference_page
    from ml_assets.pipeline.version_difference import compare_versions

    with Project.to_read() as project:
        spec = project.component(TrainingPipeline, model).spec
        versions = [registered(project, model, number) for number in (before, after)]
        page = difference_page(compare_versions(spec, project.platform, *versions))
    if html is None:
        say(page.to_markdown().rstrip())
    else:
        html.write_text(page.to_html(), encoding="utf-8")
        say(f"wrote {html}")

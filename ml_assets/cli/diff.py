"""`ml-assets diff`: show why a metric moved between two versions of a model."""

from pathlib import Path

import click

from ml_assets.cli.project import Project
from ml_assets.cli.registered import VERSION, registered
from ml_assets.cli.written import html_option, show


@click.command("diff", short_help="Show what differs between two versions, and what moved on the same rows.")
@click.argument("model")
@click.argument("before", metavar="V1", type=VERSION)
@click.argument("after", metavar="V2", type=VERSION)
@html_option
def command(model: str, before: int, after: int, html: Path | None) -> None:
    """Compare versions V1 and V2 of MODEL: rows by day, feature code, settings, and metrics on the same rows.

    Both are scored on the holdout of the version with the later one. Changes nothing.
    """
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.steps.difference_page import difference_page
    from ml_assets.model.steps.version_difference import compare_versions

    with Project.to_read() as project:
        spec = project.component(TrainingPipeline, model).spec
        versions = [registered(project, model, number) for number in (before, after)]
        page = difference_page(compare_versions(spec, project.platform, *versions))
    show(page, html)

"""`ml-assets digest`: what happened on a day, and who has to act."""

from datetime import UTC, datetime
from pathlib import Path

import click

from ml_assets.cli.project import Project
from ml_assets.cli.written import html_option, show


@click.command("digest", short_help="Show what happened on a day, and who has to act.")
@click.argument("model", required=False)
@click.option("--day", type=click.DateTime(["%Y-%m-%d"]), help="UTC day, such as 2026-11-23. Default: today.")
@html_option
def command(model: str | None, day: datetime | None, html: Path | None) -> None:
    """Print the digest of a UTC day: failures, trainings, evaluations, decisions, waiting versions, late tables, cost.

    With MODEL only that model. Changes nothing.
    """
    from ml_assets.cli.problems import Problem
    from ml_assets.components.assets.digest import declared_subjects
    from ml_assets.components.sensors.ended_runs import ended_launches
    from ml_assets.model.steps.digest import bounds_of, digest_of, digest_page
    from resources.words import did_you_mean

    today = datetime.now(UTC).date()
    asked = today if day is None else day.date()
    if asked > today:
        raise Problem(f"--day {asked} is in the future: the digest of today tells what happened until now")
    with Project.to_read() as project:
        subjects = declared_subjects(project.defs)
        if model is not None:
            if model not in subjects.models:
                raise Problem(f"no model is named '{model}'{did_you_mean(model, subjects.models)}")
            subjects = subjects.only(model)
        launches = ended_launches(project.instance, *bounds_of(asked))
        page = digest_page(digest_of(project.platform, subjects, asked, launches))
    show(page, html)

"""`ml-assets sweep`: remove trainings from the cluster whose launcher is gone."""

import click

from ml_assets.cli.project import Project, say


@click.command("sweep", short_help="Remove trainings from the cluster whose launcher is gone.")
def command() -> None:
    """Remove the Jobs, pods and Services of every training whose launcher shows no sign of life any more.

    Dagster's daemon does the same by itself; checkpoints stay, and launching again goes on from them.
    """
    swept = Project.here().platform.launcher.sweep()
    for name in swept:
        say(f"removed {name}")
    if not swept:
        say("nothing to remove: every training has a launcher")

"""`ml-assets sweep`: remove trainings from the cluster whose launcher is gone."""

import click

from ml_assets.cli.project import Project, say, say_aside


@click.command("sweep", short_help="Remove trainings from the cluster whose launcher is gone.")
def command() -> None:
    """Remove the Jobs, pods and Services of every training whose launcher is gone and whose run has ended.

    Dagster's daemon does the same by itself; checkpoints stay, and launching again goes on from them. The training of a
    run that has not ended waits for it (ML_ASSETS_KUBERNETES_RETURN_SECONDS).
    """
    from ml_assets.cli.abandoned import end_abandoned
    from ml_assets.components.sweeping import IN_ORDER, has_ended

    project = Project.here()
    end_abandoned(project.settings, project.instance)
    swept = project.platform.launcher.sweep(lambda run: has_ended(project.instance, run), say_aside)
    for name in swept:
        say(f"removed {name}")
    if not swept:
        say(IN_ORDER)

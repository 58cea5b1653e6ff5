"""`ml-assets trainings prune`: remove abandoned trainings from the cluster."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say, say_aside


@click.group("trainings", cls=SuggestingGroup, short_help="Remove abandoned trainings from the cluster.")
def command() -> None:
    """Remove abandoned trainings from the cluster."""


@command.command("prune", short_help="Remove trainings whose launcher is gone and whose run has ended.")
def prune() -> None:
    """Remove the Jobs, pods and Services of every training whose launcher is gone and whose run has ended.

    Dagster's daemon prunes by itself. Checkpoints stay: the next launch resumes from them. A training whose run has not
    ended is kept until the run returns, for ML_ASSETS_KUBERNETES_RETURN_SECONDS at most.
    """
    from ml_assets.cli.abandoned import end_abandoned
    from ml_assets.components.sensors.ended_runs import NOTHING_TO_PRUNE, has_ended

    project = Project.here()
    end_abandoned(project.settings, project.instance)
    pruned = project.platform.launcher.prune(lambda run: has_ended(project.instance, run), say_aside)
    for name in pruned:
        say(f"removed {name}")
    if not pruned:
        say(NOTHING_TO_PRUNE)

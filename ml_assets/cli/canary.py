"""`ml-assets canary`: the state of a model's canary."""

import click

from ml_assets.cli.project import Project, say


@click.command("canary", short_help="Show what the requests of a model's canary show so far.")
@click.argument("model")
def command(model: str) -> None:
    """Show the canary of MODEL: since when, until when, and each watched metric with its evidence. Takes nothing back.

    Dagster's sensor MODEL_canary takes a canary back whose e-value has reached its limit.
    """
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.use.live.canary_watch import evidence, in_lines

    with Project.to_read() as project:
        spec = project.component(TrainingPipeline, model).spec
        for line in in_lines(spec, evidence(spec, project.platform)):
            say(line)

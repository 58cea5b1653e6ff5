"""`ml-assets promote`: put a registered version into production."""

import click

from ml_assets.cli.project import Project, say


@click.command("promote", short_help="Put a registered version into production, with a reason.")
@click.argument("model")
@click.argument("version", type=int, required=False)
@click.option("--reason", help="Why; recorded with your name in an append-only log.")
@click.option("--log", "show_log", is_flag=True, help="Show all promotions of MODEL instead.")
def command(model: str, version: int | None, reason: str | None, show_log: bool) -> None:
    """Put VERSION of MODEL into production (by default the newest blessed one). An older version rolls back."""
    from ml_assets.cli.problems import Problem
    from ml_assets.release.parts import registry_of, releases_of

    project = Project.here()
    releases = releases_of(project.platform)
    if show_log:
        log = releases.log(model)
        if not log:
            raise Problem(
                f"no version of '{model}' was ever in production; the first comes by ml-assets promote {model} "
                "--reason '…'"
            )
        for row in log:
            say(f"{row.at:%Y-%m-%d %H:%M:%S} UTC  version {row.version}  by {row.author}: {row.reason}")
        return
    if not reason:
        raise Problem("others will want to know why: add --reason '…'")
    if version is None:
        versions = registry_of(project.platform).versions(model)
        blessed = [one for one in versions if one.gate_status == "blessed"]
        if not blessed:
            if not versions:
                from ml_assets.components.training_pipeline import TrainingPipeline

                project.component(TrainingPipeline, model)  # `Problem` with the names there are
            raise Problem(
                f"{model} has no blessed version; materialize the model first: ml-assets launch {model} DATE"
            )
        version = blessed[-1].number
    promotion = releases.promote(model, version, author=project.settings.author, reason=reason)
    say(f"{model} version {promotion.version} is in production since {promotion.at:%Y-%m-%d %H:%M} UTC,")
    say(f"promoted by {promotion.author}: {promotion.reason}")
    say(f"Load it anywhere: mlflow.pyfunc.load_model('models:/{model}@production')")

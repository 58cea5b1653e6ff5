"""`ml-assets promote`: put a registered version into production."""

import click

from ml_assets.cli.project import Project, say


@click.command("promote", short_help="Put a registered version into production, with a reason.")
@click.argument("model")
@click.argument("version", type=int, required=False)
@click.option("--reason", help="Why; recorded with your name in an append-only log.")
@click.option(
    "--despite-inputs",
    is_flag=True,
    help="Though something it was trained on is rejected by now; the log records what.",
)
@click.option("--log", "show_log", is_flag=True, help="Show all promotions of MODEL instead.")
def command(
    model: str, version: int | None, reason: str | None, despite_inputs: bool, show_log: bool
) -> None:
    """Put VERSION of MODEL into production, by default the blessed one of the newest data.

    Its newest evaluation must have blessed it beside the version in production, and nothing it was trained on may be
    rejected by now. A version that was in production before can always come back.
    """
    from ml_assets.cli.problems import Problem
    from ml_assets.release.of_platform import registry_of, releases_of
    from resources.ledger import evaluation_name

    project = Project.here()
    releases = releases_of(project.platform)
    if show_log:
        log = releases.log(model)
        if not log:
            raise Problem(
                f"no version of '{model}' was ever in production; the first comes by ml-assets promote {model} "
                "--reason '…'"
            )
        reports = {one.evaluation_digest: one.report for one in releases.evaluations(model)}
        for row in log:
            say(f"{row.at:%Y-%m-%d %H:%M:%S} UTC  version {row.version}  by {row.author}: {row.reason}")
            if row.despite:
                say(f"    despite {row.despite}")
            report = reports.get(row.evaluation_digest)
            if report is not None:
                say(f"    on evaluation {evaluation_name(row.evaluation_digest)}: {report}")
            if row.demotion is not None:
                ended = row.demotion
                say(f"{ended.at:%Y-%m-%d %H:%M:%S} UTC  none       by {ended.author}: {ended.reason}")
        return
    if not reason:
        raise Problem("others will want to know why: add --reason '…'")
    if version is None:
        newest = releases.newest_data(model)
        if newest is None:
            if not registry_of(project.platform).versions(model):
                from ml_assets.components.training_pipeline import TrainingPipeline

                project.component(TrainingPipeline, model)  # `Problem` with the names there are
            raise Problem(
                f"{model} has no blessed version that was not in production before; materialize the model: "
                f"ml-assets launch {model} DATE, or name the version to go back to: ml-assets promote {model} NUMBER"
            )
        version = newest.number
    before = releases.in_production(model)
    promotion = releases.promote(
        model, version, author=project.settings.author, reason=reason, despite_inputs=despite_inputs
    )
    if before == promotion:
        say(f"Nothing changed: {model} version {promotion.version} is in production already.")
    say(f"{model} version {promotion.version} is in production since {promotion.at:%Y-%m-%d %H:%M} UTC,")
    say(f"promoted by {promotion.author}: {promotion.reason}")
    if promotion.despite:
        say(f"despite {promotion.despite}")
    say(f"Load it anywhere: mlflow.pyfunc.load_model('models:/{model}@production')")

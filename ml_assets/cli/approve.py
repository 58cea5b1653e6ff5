"""`ml-assets approve`: approve a version, so that somebody else may promote it."""

import click

from ml_assets.cli.project import Project, say


@click.command("approve", short_help="Approve a version's evaluation, so that it may be promoted.")
@click.argument("model")
@click.argument("version", type=int)
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def command(model: str, version: int, reason: str) -> None:
    """Approve the newest evaluation of VERSION of MODEL.

    `release.approval` in defs.yaml says who may. A new evaluation needs a new approval.
    """
    review(model, version, reason, approves=True)


def review(model: str, number: int, reason: str, *, approves: bool) -> None:
    """Record a review by the acting person, and print the one that decides."""
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.release.of_platform import releases_of
    from resources.ledger import evaluation_name

    project = Project.here()
    author, rules = project.settings.author, project.component(TrainingPipeline, model).spec.release
    decided = releases_of(project.platform).review(
        model, number, approves=approves, author=author, reason=reason, rules=rules
    )
    verb = "approved" if approves else "rejected"
    if (decided.author, decided.reason) != (author, reason):
        say(f"Nothing changed: {model} version {number} was {verb} before this command.")
    say(f"{model} version {number} is {verb} since {decided.at:%Y-%m-%d %H:%M} UTC,")
    say(f"by {decided.author}: {decided.reason}")
    say(f"This counts for evaluation {evaluation_name(decided.evaluation_digest)} alone.")
    say(
        f"Nobody checked that you are {author}: the name is ML_ASSETS_AUTHOR, or your account of the operating system."
    )
    if approves:
        say(f"To promote it: ml-assets promote {model} {number} --reason '…'")

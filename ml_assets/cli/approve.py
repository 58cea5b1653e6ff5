"""`ml-assets approve`: approve a version, so that somebody else may promote it."""

import click

from ml_assets.cli.project import Project, say
from ml_assets.cli.registered import VERSION


@click.command("approve", short_help="Approve a version's evaluation, so that it may be promoted.")
@click.argument("model")
@click.argument("version", type=VERSION)
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def command(model: str, version: int, reason: str) -> None:
    """Approve the newest evaluation of VERSION of MODEL.

    `release.approval` in defs.yaml says who may. A new evaluation needs a new approval.
    """
    review(model, version, reason, approves=True)


def review(model: str, number: int, reason: str, *, approves: bool) -> None:
    """Record a review by the acting person, and print the one that decides."""
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.release.releases import releases_of
    from ml_assets.model.release.reviews import review as record_review
    from resources.ledger import author_in_words, evaluation_name

    project, acting = Project.to_decide()
    rules = project.component(TrainingPipeline, model).spec.rules
    releases = releases_of(project.platform)
    decided = record_review(
        releases,
        model,
        number,
        approves=approves,
        by=acting,
        reason=reason,
        rules=rules,
    )
    verb = "approved" if approves else "rejected"
    if (decided.author, decided.reason) != (acting.name, reason):
        say(f"Nothing changed: {model} version {number} was {verb} before this command.")
    say(f"{model} version {number} is {verb} since {decided.at:%Y-%m-%d %H:%M} UTC,")
    say(f"by {author_in_words(decided)}: {decided.reason}")
    say(f"This counts for evaluation {evaluation_name(decided.evaluation_digest)} alone.")
    if acting.checked_by == "nobody":
        say(
            f"Nobody checked that you are {acting.name}: the name is ML_ASSETS_AUTHOR, or your account of the "
            "operating system."
        )
    authors = releases.standings(model).of(decided.bundle_digest).evaluations
    if unknown := sorted({one.author for one in authors if one.checked_by == "nobody"} - {acting.name}):
        say(
            f"Nobody checked that {', '.join(unknown)} ran its evaluation, so a person who ran it may have approved it."
        )
    if approves and decided.approves:
        say(f"To promote it: ml-assets promote {model} {number} --reason '…'")

"""`ml-assets demote`: take a model out of production."""

import click

from ml_assets.cli.project import Project, say


@click.command("demote", short_help="Take a model out of production, with a reason.")
@click.argument("model")
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
@click.option("--canary", is_flag=True, help="Take the canary back to staging; production stays.")
def command(model: str, reason: str, canary: bool) -> None:
    """Take MODEL's version out of production. No other version replaces it.

    The gates then treat the next training of MODEL as a first model: against the naive baseline, without a champion.
    """
    from ml_assets.model.release.releases import releases_of
    from ml_assets.model.release.rollback import demote
    from ml_assets.model.release.standing import CANARY, PRODUCTION
    from resources.ledger import author_in_words

    project, acting = Project.to_decide()
    ended = demote(
        releases_of(project.platform),
        model,
        by=acting,
        reason=reason,
        role=CANARY if canary else PRODUCTION,
    )
    demotion = ended.demotion
    by = "" if demotion is None else f"Demoted by {author_in_words(demotion)}: {demotion.reason}"
    if canary:
        say(f"{model} version {ended.version} is no longer the canary. It is in staging.")
        say(by)
        return
    say(f"{model} version {ended.version} is no longer in production. No version is.")
    say(by)
    say(f"To promote it again: ml-assets promote {model} {ended.version} --reason '…'")

"""`ml-assets rollback`: return to the version that was in production before."""

import click

from ml_assets.cli.project import Project, say


@click.command("rollback", short_help="Return to the version that was in production before.")
@click.argument("model")
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def command(model: str, reason: str) -> None:
    """Put the version of MODEL into production again that was there before the present one.

    Neither a later evaluation nor a rejected day stands in the way. A second rollback goes back by one more version. It
    never returns to an archived or a demoted version.
    """
    from ml_assets.model.release.releases import releases_of
    from ml_assets.model.release.rollback import replaced_by, rollback
    from resources.ledger import author_in_words

    project, acting = Project.to_decide()
    releases = releases_of(project.platform)
    promotion = rollback(releases, model, by=acting, reason=reason)
    say(
        f"{model} version {promotion.version} is in production again since {promotion.at:%Y-%m-%d %H:%M} UTC,"
    )
    say(f"by {author_in_words(promotion)}: {promotion.reason}")
    newest = releases.standings(model).of(promotion.bundle_digest).newest
    if newest is not None and newest.evaluation_digest != promotion.evaluation_digest:
        say(
            f"It was evaluated again since, with the result {newest.status} ({newest.name}, {newest.partition}):"
        )
        say(f"    {newest.summary} Report: {newest.report}")
    if (replaced := replaced_by(releases, promotion)) is not None:
        say(
            f"It replaced version {replaced.version}, which can return: ml-assets promote {model} {replaced.version} "
            "--reason '…'"
        )

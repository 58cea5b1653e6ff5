"""`ml-assets archive`: take a version out of use for good."""

import click

from ml_assets.cli.project import Project, say
from ml_assets.cli.registered import VERSION


@click.command("archive", short_help="Take a version out of use for good, with a reason.")
@click.argument("model")
@click.argument("version", type=VERSION)
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def command(model: str, version: int, reason: str) -> None:
    """Archive VERSION of MODEL: it is never promoted again, and no rollback returns to it. This is final.

    The version in production cannot be archived. Card and comparisons of an archived version stay.
    """
    from ml_assets.model.release.releases import releases_of
    from ml_assets.model.release.rollback import archive
    from resources.ledger import author_in_words

    project, acting = Project.to_decide()
    archival = archive(releases_of(project.platform), model, version, by=acting, reason=reason)
    say(f"{model} version {version} is archived since {archival.at:%Y-%m-%d %H:%M} UTC,")
    say(f"by {author_in_words(archival)}: {archival.reason}")

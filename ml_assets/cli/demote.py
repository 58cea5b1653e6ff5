"""`ml-assets demote`: take a model out of production."""

import click

from ml_assets.cli.project import Project, say


@click.command("demote", short_help="Take a model out of production, with a reason.")
@click.argument("model")
@click.option("--reason", required=True, help="Why; recorded with your name in an append-only log.")
def command(model: str, reason: str) -> None:
    """Take the version of MODEL that is in production out of it, with nothing in its place.

    The next training of MODEL is judged as a first model: by the naive baseline, without a champion.
    """
    from ml_assets.release.of_platform import releases_of

    project = Project.here()
    ended = releases_of(project.platform).demote(model, author=project.settings.author, reason=reason)
    say(f"{model} version {ended.version} is in production no longer; nothing is.")
    say(f"Back to it: ml-assets promote {model} {ended.version} --reason '…'")

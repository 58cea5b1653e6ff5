"""`ml-assets lake init` and `ml-assets lake sweep`: making the lake ready, and reading its history."""

import click

from ml_assets.cli.project import Project, say


@click.group("lake", short_help="Make the lake ready; look for changes without an audit.")
def command() -> None:
    """Make the lake ready; look for changes without an audit."""


@command.command("init", short_help="Make and protect the repository, install the gate.")
def init() -> None:
    """Make the lake's repository, protect main, install the gate that lets only audited changes in.

    Repeating it changes nothing, and renews an older gate.
    """
    for line in Project.here().platform.make_lake_ready():
        say(line)


@command.command("sweep", short_help="Name what came to main without an audit.")
@click.option("--newest", default=10_000, show_default=True, help="How many commits of main to read.")
def sweep(newest: int) -> None:
    """Name every commit on main that no audit passed and no person accepted. Exit status 1 if there is any."""
    from ml_assets.tables.audits import unaudited

    platform = Project.here().platform
    found = unaudited(platform.lake, newest)
    for commit in found:
        say(f"{commit.created_at:%Y-%m-%d %H:%M:%S} UTC  {commit.message}")
        say(f"    {platform.lake.commit_url(commit.id) or commit.id}")
    gate = platform.lake_gate_stands()
    if not gate:
        say("The gate of main is missing or not the one of this version: ml-assets lake init installs it.")
    if found:
        say(
            f"Came to main without a passed audit: {len(found)}. Publish those partitions again "
            "(ml-assets launch), or accept them: ml-assets accept TABLE PARTITION --reason '…'."
        )
    if found or not gate:
        raise SystemExit(1)
    say("Everything on main passed an audit or was accepted by a person.")

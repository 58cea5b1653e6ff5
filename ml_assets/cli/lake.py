"""`ml-assets lake init`, `audit` and `migrate`: set the lake up, check its history, move it to lakeFS."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say, say_aside
from resources.words import name_some


@click.group(
    "lake",
    cls=SuggestingGroup,
    short_help="Set up the lake; check that every commit on main was audited; move it to lakeFS.",
)
def command() -> None:
    """Set up the lake; check that every commit on main was audited; move it to lakeFS."""


@command.command("init", short_help="Create and protect the repository; install the audit hook.")
def init() -> None:
    """Create the lake's repository, protect main and install the audit hook, which refuses unaudited merges.

    You can run it again at any time. It replaces an older hook and changes nothing else.
    """
    for line in Project.here().platform.make_lake_ready():
        say(line)


@command.command("audit", short_help="List commits on main without a passed audit.")
@click.option("--limit", default=10_000, show_default=True, help="Check this many of main's newest commits.")
def audit(limit: int) -> None:
    """List commits on main without an audit or acceptance, and rejections that the ledger does not know.

    Exit status 1 if there is one of these, or if the audit hook is missing.
    """
    from ml_assets.data.tables.history.log import unaudited, unknown_rejections

    platform = Project.read_only().platform
    commits = unaudited(platform.lake, limit)
    for commit in commits:
        say(f"{commit.created_at:%Y-%m-%d %H:%M:%S} UTC  {commit.message}")
        say(f"    {platform.lake.commit_url(commit.id) or commit.id}")
    hook_is_current = platform.audit_hook_is_current()
    if not hook_is_current:
        say(
            "The audit hook of main is missing or belongs to another version. Install it: ml-assets lake init"
        )
    if commits:
        say(
            f"Commits on main without a passed audit: {len(commits)}. Publish those partitions again "
            "(ml-assets launch), or accept them: ml-assets accept TABLE PARTITION --reason '…'."
        )
    rejections = unknown_rejections(platform.lake, platform.ledger)
    for one in rejections:
        say(
            f"{one.table} {name_some(one.keys, 3)} was rejected (branch {one.branch}), and the ledger does not know it."
        )
    if rejections:
        say(
            "Trainings may read what main holds of these partitions. Materialize them again (ml-assets launch). The "
            "ledger is older than the lake, or another ledger was used with this lake, or a run was killed."
        )
    if commits or rejections or not hook_is_current:
        raise SystemExit(1)
    say("Every commit on main passed an audit or was accepted by a person.")


@command.command(
    "migrate", short_help="Show what moves from the embedded lake to lakeFS; move it with --copy."
)
@click.option(
    "--copy", "copies", is_flag=True, help="Copy it and verify it. Without this option nothing changes."
)
def migrate(copies: bool) -> None:
    """Show what moves from the embedded lake of the home to lakeFS; move it with --copy, with its history.

    ML_ASSETS_LAKE_URL and its keys name the server, ML_ASSETS_ENVIRONMENT the embedded lake and the repository, which
    --copy creates. The embedded lake stays as it is. A killed copy goes on when it is repeated.
    """
    from resources.files import locked
    from resources.lake.lakefs_setup import create_repository

    platform = Project.on_main().platform
    with locked(platform.settings.home / "lake-migration.lock"):
        migration = platform.lake_migration
        found = migration.look()
        say(f"{found.branches:>8,} branches, {found.tags:,} tags")
        say(f"{found.commits:>8,} commits, of which {found.migrated:,} were moved before")
        say(f"{found.contents:>8,} contents of {found.size:,} bytes")
        say(f"{found.lost:>8,} contents that garbage collection deleted")
        if not copies:
            say("Nothing was copied. To copy it: ml-assets lake migrate --copy")
            return
        create_repository(platform.lakefs, platform.settings.lake_storage)
        ids = migration.copy(say_aside)
        for line in platform.make_lake_ready():
            say(line)
    say(f"{len(ids):,} commits moved and verified; ids of the embedded lake stay valid. It is in")
    say(f"{platform.settings.lake_folder}, which nothing reads while ML_ASSETS_LAKE_URL is set")

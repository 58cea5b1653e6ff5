"""`ml-assets lake init` and `ml-assets lake audit`: set the lake up, and check its history."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say
from resources.words import name_some


@click.group(
    "lake", cls=SuggestingGroup, short_help="Set up the lake; check that every commit on main was audited."
)
def command() -> None:
    """Set up the lake; check that every commit on main was audited."""


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
    from ml_assets.tables.audits import unaudited, unknown_rejections

    platform = Project.here().platform
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

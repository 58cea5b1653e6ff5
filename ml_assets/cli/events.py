"""`ml-assets events prune`: show what Dagster's event log no longer needs, in bytes; delete it."""

import json
from datetime import UTC, datetime, timedelta

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say
from resources.words import counted


@click.group("events", cls=SuggestingGroup, short_help="Make Dagster's event log smaller.")
def command() -> None:
    """Make Dagster's event log smaller."""


@command.command(
    "prune", short_help="Show old events that no answer of Dagster needs; delete them with --delete."
)
@click.option("--delete", is_flag=True, help="Delete them. Without this option nothing changes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def prune(delete: bool, as_json: bool) -> None:
    """Show old events that no answer of Dagster about assets needs; delete them with --delete.

    Events of the last ML_ASSETS_HISTORY_DAYS stay, and those of runs that have not ended. Pages of older runs lose
    their log lines.
    """
    from ml_assets.extras.event_pruning.prune import find_prunable, prune_events

    project = Project.here()
    since = datetime.now(UTC) - timedelta(days=project.settings.history_days)
    work = prune_events if delete else find_prunable
    found = work(project.instance, project.defs.resolve_asset_graph(), since)
    if as_json:
        facts = {"rows": dict(found.rows), "bytes": found.before, "bytes_after": found.after}
        say(json.dumps({"deleted": delete, **facts}, indent=1))
        return
    for kind, rows in found.rows.items():
        say(f"{kind:<20}{rows:>12,}")
    went = found.before - found.after
    if delete:
        say(f"deleted; the event log has {found.after:,} bytes, {went:,} less than before")
        return
    days = counted(project.settings.history_days, "day")
    say(f"About {went:,} of {found.before:,} bytes. Events of the last {days} stay.")
    say("Nothing was deleted. To delete them: ml-assets events prune --delete")

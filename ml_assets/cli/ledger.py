"""`ml-assets ledger`: show the schema revision of the ledger's tables, and downgrade to an earlier revision."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say


@click.group(
    "ledger",
    cls=SuggestingGroup,
    short_help="Show the ledger's schema revision, or downgrade to an earlier one.",
)
def command() -> None:
    """Show or downgrade the ledger's schema revision. An older version of ml-assets needs a downgrade first."""


@command.command("current", short_help="Show the schema revision of the tables.")
def current() -> None:
    """Show the schema revision of the tables, and the revision that this version of ml-assets needs."""
    from resources.ledger.migrations import NEWEST

    revision = Project.here().platform.ledger.revision()
    say(f"the tables have revision {revision or 'none'}, this version of ml-assets needs {NEWEST}")


@command.command("downgrade", short_help="Downgrade the tables to an earlier revision.")
@click.argument("revision")
def downgrade(revision: str) -> None:
    """Downgrade the tables to REVISION and keep their rows. First stop every process that uses the ledger."""
    Project.here().platform.ledger.downgrade(revision)
    say(f"the tables have revision {revision}; this version upgrades them again when it next uses them")

"""`ml-assets ledger`: which step the ledger's tables stand at, and the way back for an older version."""

import click

from ml_assets.cli.project import Project, say


@click.group("ledger", short_help="The step the ledger's tables stand at, and back to an earlier one.")
def command() -> None:
    """Tables are brought forward by first use; going back is for running an older version of ml-assets."""


@command.command("step", short_help="Show the step the tables stand at.")
def step() -> None:
    """Show the step the tables stand at, and the one this version works with."""
    from resources.ledger.migrations import NEWEST

    found = Project.here().platform.ledger.step()
    say(f"the tables stand at {found or 'nothing yet'}, this version of ml-assets works with {NEWEST}")


@command.command("downgrade", short_help="Take the tables back to an earlier step.")
@click.argument("to")
def downgrade(to: str) -> None:
    """Take the tables back to step TO; rows are kept. Stop everything that uses them first."""
    Project.here().platform.ledger.downgrade(to)
    say(f"the tables stand at {to}; the next use by this version brings them forward again")

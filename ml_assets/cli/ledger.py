"""`ml-assets ledger`: schema revision of the ledger's tables, and the check of its hash chain."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say


@click.group(
    "ledger",
    cls=SuggestingGroup,
    short_help="Check that no decision was changed; show the schema revision.",
)
def command() -> None:
    """Check the ledger's hash chain; show its schema revision."""


@command.command("verify", short_help="Check that no decision was changed since.")
@click.option("--head", "known", help="Head that an earlier `verify` printed; the chain must contain it.")
def verify(known: str | None) -> None:
    """Walk the hash chain over all decisions about models and accounts, and over acceptances.

    The error names the first row that was changed, removed, inserted or moved. Keep the printed head outside the
    database: only with it are a chain that was rewritten to its end, and removed last rows, found later.
    """
    from resources.ledger import Head

    head = Head.parse(known) if known else None
    found = Project.read_only().platform.ledger.models.verify(head)
    if not found.place:
        say("the ledger has no decision yet")
        return
    say(f"{found.place} decisions, each chained to the one before it: none was changed.")
    say(f"Keep this head elsewhere; to compare later: ml-assets ledger verify --head {found}")


@command.command("redate", short_help="Date rows of a model that a wrong clock dated ahead, with a reason.")
@click.argument("model")
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def redate(model: str, reason: str) -> None:
    """Let rows of MODEL that are dated ahead of the ledger's clock count as of now. The rows themselves stay.

    Until then no decision about MODEL is stored, because it would get a time ahead, too.
    """
    project, acting = Project.to_decide()
    row = project.platform.ledger.models.redate(model, acting, reason=reason)
    say(f"Rows {', '.join(map(str, row.rows))} of {model} count as of {row.at:%Y-%m-%d %H:%M:%S} UTC.")


@command.command("current", short_help="Show the schema revision of the tables.")
def current() -> None:
    """Show the schema revision of the tables, and the revision that this version of ml-assets needs."""
    from resources.ledger.migrations import NEWEST

    revision = Project.read_only().platform.ledger.revision()
    say(f"the tables have revision {revision or 'none'}, this version of ml-assets needs {NEWEST}")

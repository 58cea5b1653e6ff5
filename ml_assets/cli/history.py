"""`ml-assets history`: every decision about a model, and what was in production at a moment."""

from datetime import UTC, datetime

import click

from ml_assets.cli.project import Project, say


@click.command("history", short_help="Show every decision about a model, or what was in production when.")
@click.argument("model")
@click.option(
    "--at", "moment", help="Show what was in production at this time (ISO 8601; UTC without a zone)."
)
def command(model: str, moment: str | None) -> None:
    """Show every decision about MODEL, oldest first, with author and reason, from the ledger alone."""
    from ml_assets.cli.problems import Problem
    from ml_assets.model.release.history import lines, state_at

    at = None if moment is None else _time(moment)
    ledger = Project.read_only().platform.ledger
    decisions = ledger.models.decisions(model)
    if not decisions:
        raise Problem(
            f"the ledger has no decision about a model '{model}'. To train and evaluate it: ml-assets launch {model} "
            "DATE"
        )
    for line in lines(decisions, ledger.accounts.all()) if at is None else state_at(decisions, at):
        say(line)
    if any(getattr(one, "checked_by", "") == "nobody" for one in decisions):
        say("Nobody checked names without “(checked by …)”.")


def _time(text: str) -> datetime:
    from ml_assets.cli.problems import Problem

    try:
        found = datetime.fromisoformat(text)
        moment = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # years 1 and 9999 have no UTC in every zone
        raise Problem(
            f"--at {text!r} is not a time: use 2026-11-23 (its first moment) or 2026-11-23T14:00"
        ) from None
    if moment > datetime.now(UTC):
        raise Problem(f"--at {text!r} is in the future: without --at, history shows every decision until now")
    return moment

"""Context of a command: it reads, it writes, or a person decides."""

from typing import TYPE_CHECKING

from ml_assets.cli.terminal import say_aside

if TYPE_CHECKING:
    from ml_assets.context import Context
    from resources.ledger import Person


def reading(*, on_main: bool = False, patience_seconds: float | None = None) -> "Context":
    """Return the context of the environment, for a command that changes nothing.

    `on_main`: as if ML_ASSETS_ENV were not set.
    """
    return _open(False, on_main, patience_seconds)


def writing(*, on_main: bool = False, patience_seconds: float | None = None) -> "Context":
    """Return the context of the environment for a command that writes. It creates the home."""
    return _open(True, on_main, patience_seconds)


def deciding() -> "tuple[Context, Person]":
    """Return the context for a command that decides, and the person who acts.

    Raises `IdentityRefused` and `IdentityNeeded` before anything else is looked at: with accounts in the ledger, the
    person must act for one in force. The ledger checks it again when it stores the decision.
    """
    context = writing()
    return context, context.person


def _open(writes: bool, on_main: bool, patience_seconds: float | None) -> "Context":
    # Not at the top: the help of a command needs no context.
    from ml_assets.context import Context
    from ml_assets.context.home import point_dagster, read_settings, why_ignored

    settings = read_settings(env=None) if on_main else read_settings()
    if ignored := why_ignored(settings):
        say_aside(ignored)
    context = Context.open(settings, writes=writes, patience_seconds=patience_seconds)
    point_dagster(settings)
    return context

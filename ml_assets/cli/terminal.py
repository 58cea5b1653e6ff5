"""Conversation of a command with a person: lines, errors with a remedy, pages, and parameters that commands share."""

import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ml_assets.foundation.reports.text import in_terminal
from resources.extras import missing_extra
from resources.words import did_you_mean, has_remedy, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from ml_assets.foundation.reports.page import WrittenPage
    from resources.ledger import Person


def say(text: str = "") -> None:
    """Print a line to standard output."""
    click.echo(in_terminal(text))


def say_aside(text: str) -> None:
    """Print a line to standard error."""
    click.echo(in_terminal(text), err=True)


def progress() -> "Console":
    """Return the console on standard error that shows progress. Rich is loaded only if a command shows any."""
    from rich.console import Console

    return Console(stderr=True)


def say_if_unchecked(acting: "Person") -> None:
    """Print that nobody checked the name of the person who decided, if so."""
    if acting.checked_by == "nobody":
        say(
            f"Nobody checked that you are {acting.name}: the name is ML_ASSETS_AUTHOR, or your account of the "
            "operating system."
        )


class Problem(click.ClickException):
    """A fault that a person can fix. The message names the remedy."""

    def format_message(self) -> str:
        """Return the message without anything that a terminal obeys: it may quote data."""
        return in_terminal(super().format_message())


class Stopped(click.ClickException):
    """A person pressed Ctrl-C."""

    exit_code = 130  # the shells' exit code for SIGINT

    def __init__(self) -> None:
        super().__init__(
            "Stopped. Finished work is kept; the same command continues from there: "
            + shlex.join(["ml-assets", *sys.argv[1:]])
        )

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line without the word "Error"."""
        click.echo(f"\n{self.message}", err=True)


@contextmanager
def explained() -> Iterator[None]:
    """Turn the project's own errors into one sentence and exit status 1. `ML_ASSETS_TRACEBACK=1` shows tracebacks."""
    try:
        yield
    except Exception as error:
        extra = missing_extra(error)
        if os.environ.get("ML_ASSETS_TRACEBACK") or not (extra or has_remedy(error)):
            raise
        say_aside(f"Error: {extra or error}")
        sys.exit(1)


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Turn an error of the file system into a `Problem` about `place`, a file or folder that a person named."""
    try:
        yield
    except OSError as error:
        raise Problem(f"cannot write {place}: {error.strerror or error}. Name another place") from error


def require_free(host: str, port: int) -> None:
    """Raise `Problem` if no server can listen on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just left is free
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Problem(
                f"port {port} of {host} cannot be used ({error.strerror}): end what uses it, perhaps this command in "
                "another terminal, or name another --port"
            ) from error


class SuggestingGroup(click.Group):
    """Click group whose usage error for an unknown command ends with "did you mean …?"."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as `click.Group` does. `click.UsageError` names the command to use."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            typed = " ".join([*ctx.command_path.split()[1:], args[0]])  # without the program's name
            ctx.fail(f"no command '{typed}'{did_you_mean(args[0], known)}")
        return super().resolve_command(ctx, args)


class _VersionNumber(click.ParamType):
    """Number of a version in plain digits. Click reads `1_0` as version 10."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; a usage error for another text."""
        number = value if isinstance(value, int) else whole_number(str(value))
        if number is None:
            self.fail(f"'{value}' is not the number of a version: write digits, such as 3", param, ctx)
        return number


VERSION = _VersionNumber()
FOLDER = click.Path(file_okay=False, path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
reason_option = click.option(
    "--reason", required=True, help="Reason; recorded with your name in an append-only log."
)
html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page as HTML to this file instead of printing Markdown.",
)
"""Option of a command that makes a page, for `show`."""


def show(page: "WrittenPage", html: Path | None) -> None:
    """Print `page` as Markdown, or write it as HTML to the file `html`."""
    if html is None:
        say(page.to_markdown().rstrip())
        return
    with writing_to(html):
        html.write_text(page.to_html(), encoding="utf-8")
    say(f"wrote {html}")

"""Errors for a person at a terminal: the fault and the remedy, without a traceback."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from ml_assets.foundation.reports.text import in_terminal
from resources.extras import missing_extra
from resources.words import has_remedy


class Problem(click.ClickException):
    """A fault that a person can fix. The message names the remedy."""

    def format_message(self) -> str:
        """Return the message without anything that a terminal obeys: it may quote data."""
        return in_terminal(super().format_message())


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Turn an error of the file system into a `Problem` about `place`, a file or folder that a person named."""
    try:
        yield
    except OSError as error:
        raise Problem(f"cannot write {place}: {error.strerror or error}. Name another place") from error


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
        click.echo(in_terminal(f"Error: {extra or error}"), err=True)
        sys.exit(1)

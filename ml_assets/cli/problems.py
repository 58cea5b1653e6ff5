"""Errors as a person at a terminal reads them: what happened and what helps, without a traceback."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click


class Problem(click.ClickException):
    """Something a person can mend; the message says how."""


class Stopped(click.ClickException):
    """A person pressed Ctrl-C."""

    exit_code = 130  # as a shell has it for SIGINT

    def __init__(self) -> None:
        super().__init__(
            "Stopped. What had landed stays; the same command goes on from there: "
            + shlex.join(["ml-assets", *sys.argv[1:]])
        )

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line without the word "Error"."""
        click.echo(f"\n{self.message}", err=True)


@contextmanager
def explained() -> Iterator[None]:
    """Typed refusals of the parts become one sentence and exit status 1. `ML_ASSETS_TRACEBACK=1` shows all."""
    try:
        yield
    except Exception as error:
        if os.environ.get("ML_ASSETS_TRACEBACK") or not _is_a_refusal(error):
            raise
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


def _is_a_refusal(error: Exception) -> bool:
    """Errors that our own modules raise by type carry their remedy; anything else is a bug to be seen."""
    return type(error).__module__.split(".")[0] in ("ml_assets", "resources")

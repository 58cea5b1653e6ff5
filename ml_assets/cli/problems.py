"""Errors as a person at a terminal reads them: what happened and what helps, without a traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


class Problem(click.ClickException):
    """Something a person can mend; the message says how."""


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

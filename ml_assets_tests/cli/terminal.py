"""`ml-assets` as a person types it, in this process: exit status and what was said."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ml_assets.cli import main


@dataclass(frozen=True)
class Said:
    """Result of a command."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Terminal:
    """A terminal whose `ml-assets` lives in `home`."""

    home: Path
    author: str = "ada"

    def named(self, author: str) -> "Terminal":
        """Return the terminal of another person on the same home."""
        return replace(self, author=author)

    def __call__(self, *arguments: str) -> Said:
        """Type `ml-assets ARGUMENTS`."""
        out, err = io.StringIO(), io.StringIO()
        with self._surroundings(arguments), redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                status = end.code
        return Said(status if isinstance(status, int) else 1, out.getvalue(), err.getvalue())

    @contextmanager
    def _surroundings(self, arguments: tuple[str, ...]) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["ml-assets", *arguments])
            patch.setenv("ML_ASSETS_HOME", str(self.home))
            patch.setenv("ML_ASSETS_AUTHOR", self.author)
            # The command points Dagster at its home; the tests after it must not find that. Empty counts as not set.
            patch.setenv("DAGSTER_HOME", os.environ.get("DAGSTER_HOME", ""))
            yield

"""Pages of the docs whose commands are typed, in a checkout of their own.

Numbers, times and ids differ between machines; everything else of an output must be as on the page.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TYPIST = """
import json, os, shlex, sys
from pathlib import Path
from ml_assets_tests.cli.terminal import Terminal
terminal = Terminal(Path(os.environ["ML_ASSETS_HOME"]))
said = []
for line in sys.argv[1:]:
    words = shlex.split(line)
    name = words.pop(0).partition("ML_ASSETS_AUTHOR=")[2] if "=" in words[0] else terminal.author
    said.append(terminal.named(name)(*words[1:]))
print(json.dumps([(one.status, one.out + one.err) for one in said]))
"""
"""Types all `ml-assets` commands of its arguments in one process: starting one takes seconds.

`ML_ASSETS_AUTHOR=bob` before a command is another person."""


@dataclass(frozen=True)
class Typed:
    """A command of the page, and the output below it."""

    command: str
    shown: str


@dataclass(frozen=True)
class Checkout:
    """A copy of this project without pipelines, and a home of its own."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """Copy the project into `folder`."""
        pipelines = [path.name for path in (ROOT / "ml_assets" / "defs").iterdir() if path.is_dir()]
        for part in ("resources", "deployment", "ml_assets"):
            left_out = shutil.ignore_patterns("__pycache__", *pipelines)
            shutil.copytree(ROOT / part, folder / part, ignore=left_out)
        shutil.copy(ROOT / "pyproject.toml", folder)
        return cls(folder)

    @property
    def home(self) -> Path:
        """Home of its commands."""
        return self.folder / ".ml-assets"

    def run(self, *line: str, status: int = 0) -> str:
        """Run a program of the environment there; it must end with `status`. Return what it printed."""
        done = subprocess.run(
            [str(BIN / line[0]), *line[1:]],
            cwd=self.folder,
            env=os.environ
            | {
                "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",  # this project's tests, the copy's rest
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": str(self.folder),
                "ML_ASSETS_HOME": str(self.home),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr * bool(status)

    def type_in(self, typed: list[Typed]) -> list[str]:
        """Type the `ml-assets` commands one after the other; what each said. All must end well."""
        answers = self.answers([one.command for one in typed])
        assert [status for status, _ in answers] == [0] * len(typed), answers
        return [said for _, said in answers]

    def answers(self, commands: Sequence[str]) -> list[tuple[int, str]]:
        """Type `ml-assets` commands one after the other; return the status of each and what it said."""
        return [(status, said) for status, said in json.loads(self.run("python", "-c", TYPIST, *commands))]


@dataclass(frozen=True)
class DocsPage:
    """A page of the docs."""

    text: str

    @classmethod
    def of(cls, path: str) -> "DocsPage":
        """Return the page at `path` below docs/."""
        return cls((ROOT / "docs" / path).read_text())

    def section(self, title: str) -> str:
        """Return the only section whose heading begins with `title`."""
        (found,) = [text for text in self.text.split("\n## ") if text.startswith(title)]
        return found

    def blocks(self, title: str, language: str) -> list[str]:
        """Return the code blocks of a section in `language`, in order."""
        found = re.findall(r"^```(\w*)\n(.*?)^```$", self.section(title), re.DOTALL | re.MULTILINE)
        return [block for its, block in found if its == language]

    def console(self, title: str) -> list[Typed]:
        """Return the commands of a section, in order; several may stand in a block."""
        typed = [
            part.partition("\n")
            for block in self.blocks(title, "")
            for part in f"\n{block}".split("\n$ ")[1:]
        ]
        return [Typed(command, shown) for command, _, shown in typed]


def type_in(checkout: Checkout, typed: list[Typed]) -> None:
    """Type commands; each must say what the page shows."""
    for one, said in zip(typed, checkout.type_in(typed), strict=True):
        assert masked(said) == masked(one.shown), one.command


def masked(text: str) -> list[str]:
    """Return the lines without what differs between two runs: numbers, dates of today, ids, the folder of the home."""
    text = re.sub(r"\S*/artifacts/", "…/artifacts/", text.strip())
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{12}\b", "ID", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)
    return re.sub(r"\d+(\.\d+)?", "N", text).splitlines()

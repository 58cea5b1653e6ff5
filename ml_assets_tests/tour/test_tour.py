"""`docs/tutorial/add-a-pipeline.md` typed line by line: every command works and says what the page shows.

Numbers, times and ids differ between machines; everything else of an output must be as on the page.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1500)
"""Two trainings and four tables of 91 days: a minute and a half on two idle cores."""

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGE = (ROOT / "docs" / "tutorial" / "add-a-pipeline.md").read_text()
TYPIST = """
import json, os, shlex, sys
from pathlib import Path
from ml_assets_tests.cli.terminal import Terminal
terminal = Terminal(Path(os.environ["ML_ASSETS_HOME"]))
said = [terminal(*shlex.split(line)[1:]) for line in sys.argv[1:]]
print(json.dumps([(one.status, one.out + one.err) for one in said]))
"""
"""Types all `ml-assets` commands of its arguments in one process: starting one takes seconds."""


@dataclass(frozen=True)
class Typed:
    """A command of the page, and the output below it."""

    command: str
    shown: str


@dataclass(frozen=True)
class Checkout:
    """A copy of this project without pipelines, and a home of its own."""

    folder: Path

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
                "ML_ASSETS_HOME": str(self.folder / ".ml-assets"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr * bool(status)

    def type_in(self, typed: list[Typed]) -> list[str]:
        """Type the `ml-assets` commands one after the other; what each said. All must end well."""
        answers = json.loads(self.run("python", "-c", TYPIST, *(one.command for one in typed)))
        assert [status for status, _ in answers] == [0] * len(typed), answers
        return [said for _, said in answers]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The project as a reader of the page has it, but for its pipelines."""
    folder = tmp_path_factory.mktemp("tour")
    for part in ("resources", "deployment", "ml_assets"):
        left_out = shutil.ignore_patterns("__pycache__", "flights", "store_demand")
        shutil.copytree(ROOT / part, folder / part, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return Checkout(folder)


@pytest.fixture(scope="module")
def scaffolded(checkout: Checkout) -> list[str]:
    """Lines that the page's first command printed."""
    (scaffold,) = _console("1. Scaffold")
    return checkout.run(*scaffold.command.split()).splitlines()


@pytest.fixture(scope="module")
def trained(checkout: Checkout, scaffolded: list[str]) -> None:
    """The commands that the scaffold printed were typed, and said what the page shows."""
    typed = _console("2. See it work")
    printed = scaffolded[scaffolded.index("Next:") + 1 :]
    assert [one.command for one in typed] == [line.strip() for line in printed]
    _type_in(checkout, typed)


def test_the_page_shows_what_the_scaffold_prints(scaffolded: list[str]) -> None:
    (scaffold,) = _console("1. Scaffold")
    assert scaffolded[1:] == scaffold.shown.splitlines()[1:]


@pytest.mark.usefixtures("trained")
def test_the_pages_own_pipeline_trains_is_promoted_and_answers(checkout: Checkout) -> None:
    files = checkout.folder / "ml_assets" / "defs" / "energy"
    source, features = _blocks("3. Make it yours", "python")
    (declared,) = _blocks("3. Make it yours", "yaml")
    for name, text in {"source.py": source, "features.py": features, "defs.yaml": declared}.items():
        (files / name).write_text(text)
    check, *others = _console("4. Check, run, promote")
    assert all(line in checkout.run(*check.command.split()) for line in check.shown.splitlines())
    build = [Typed(one.command, "") for one in _console("2. See it work")[:2]]
    checkout.type_in(build)
    _type_in(checkout, others)
    (serve,) = _blocks("4. Check, run, promote", "python")
    answer = re.search(r"# (\[.*\])$", serve, re.MULTILINE)
    assert answer
    assert _masked(checkout.run("python", "-c", serve)) == _masked(answer[1])


@pytest.mark.usefixtures("scaffolded")
def test_a_typo_is_the_line_on_the_page_wherever_it_is_read(checkout: Checkout) -> None:
    (typed, *_) = _console("When something is wrong")
    files = checkout.folder / "ml_assets" / "defs" / "energy"
    shutil.copy(files / "defs.yaml", right := checkout.folder / "right.yaml")
    (declared,) = _blocks("3. Make it yours", "yaml")
    (files / "defs.yaml").write_text(declared.replace("epochs: 10", "epoch: 10"))
    assert checkout.run(*typed.command.split(), status=1) == typed.shown
    checked = checkout.run("dg", "check", "defs", "--no-check-yaml", status=1)
    assert typed.shown.removeprefix("Error: ") in checked
    right.replace(files / "defs.yaml")


def _type_in(checkout: Checkout, typed: list[Typed]) -> None:
    for one, said in zip(typed, checkout.type_in(typed), strict=True):
        assert _masked(said) == _masked(one.shown), one.command


def _section(title: str) -> str:
    (found,) = [text for text in PAGE.split("\n## ") if text.startswith(title)]
    return found


def _blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", _section(title), re.DOTALL | re.MULTILINE)


def _console(title: str) -> list[Typed]:
    """The commands of a section, in order; several may stand in one block."""
    typed = [part.partition("\n") for block in _blocks(title, "") for part in f"\n{block}".split("\n$ ")[1:]]
    return [Typed(command, shown) for command, _, shown in typed]


def _masked(text: str) -> list[str]:
    """Lines without what differs between two runs: numbers, dates of today, ids, the folder of the home."""
    text = re.sub(r"\S*/artifacts/", "…/artifacts/", text.strip())
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|/[0-9a-f]{12}/", "ID", text)
    return re.sub(r"\d+(\.\d+)?", "N", text).splitlines()

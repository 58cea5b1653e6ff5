"""`ml-assets --help`: commands in sections, and help without the platform's heavy packages."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module

import click
import pytest

from ml_assets.cli import SECTIONS, group
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.cli.terminal import Terminal

NAMES = [name for commands in SECTIONS.values() for name in commands]
MODULES = sorted({module for commands in SECTIONS.values() for module, _ in commands.values()})
HEAVY = ("dagster", "mlflow", "polars", "rich", "sqlalchemy", "torch")


def test_the_help_has_every_command_in_one_section(terminal: Terminal) -> None:
    said = terminal("--help").out
    sections = dict(re.findall(r"^(\S[^\n]*):\n((?:  [^\n]*\n)+)", said, re.MULTILINE))
    shown = {heading: re.findall(r"^  (\w+) ", sections[heading], re.MULTILINE) for heading in SECTIONS}
    assert shown == {heading: list(commands) for heading, commands in SECTIONS.items()}
    assert len(NAMES) == len(set(NAMES))
    assert group.list_commands(click.Context(group)) == NAMES


def test_the_version_is_that_of_pyproject(terminal: Terminal) -> None:
    said = terminal("--version")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (said.status, said.out) == (0, f"ml-assets {declared}\n")


@pytest.mark.parametrize("module", MODULES)
def test_the_sections_name_all_commands_of_a_module(module: str) -> None:
    found = [
        one
        for one in vars(import_module(f"ml_assets.cli.{module}")).values()
        if isinstance(one, click.Command)
    ]
    below = [one for group in found if isinstance(group, click.Group) for one in group.commands.values()]
    named = [
        name for commands in SECTIONS.values() for name, (place, _) in commands.items() if place == module
    ]
    assert sorted(one.name or "" for one in found if one not in below) == sorted(named)


def test_the_help_of_a_command_loads_no_heavy_package() -> None:
    code = f"import sys, ml_assets.cli.{', ml_assets.cli.'.join(MODULES)}; print(*{{*sys.modules}} & {{*{HEAVY}}})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == []

"""The docs site: its navigation, links, and the pages of the reference, which are made from the code."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from deployment.site.reference_pages import reference
from deployment.site.site_links import OUTSIDE, on_site
from ml_assets import cli
from ml_assets.foundation.checkout import ROOT
from resources.settings import KubernetesSettings, Settings

PAGES = reference()


def _rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of keys of `page`."""
    lines = [line for line in PAGES[Path("docs", "reference", page)].splitlines() if line.startswith("| `")]
    return [re.split(r" \| ", line.strip("| ")) for line in lines]


def test_the_reference_in_git_is_made_from_the_code() -> None:
    assert {path: (ROOT / path).read_text() for path in PAGES} == PAGES, (
        "run make render, and commit what it writes"
    )


@pytest.mark.parametrize(
    ("page", "key", "cells"),
    [
        ("training-pipeline.md", "min_count", ["integer, ≥ 1", "`1`"]),
        ("training-pipeline.md", "on_stale_inputs", ["`warn`, `refuse`", "`warn`"]),
        ("training-pipeline.md", "label", ["text", "required"]),
        ("training-pipeline.md", "gates", ["list: [section](#evaluationgates)", "required"]),
        (
            "dataset.md",
            "cadence",
            ["`hourly`, `daily`, `weekly`, `monthly`, `quarterly`, `yearly`", "required"],
        ),
    ],
)
def test_a_key_has_its_values_and_its_default(page: str, key: str, cells: list[str]) -> None:
    (row, *_) = [row for row in _rows(page) if row[0] == f"`{key}`"]
    assert row[1:3] == cells


def test_each_setting_has_a_row() -> None:
    shown = {row[0].strip("`") for row in _rows("settings.md")}
    own = set(Settings.model_fields) - {"kubernetes"}
    expected = {f"ML_ASSETS_{name.upper()}" for name in own}
    assert shown == expected | {
        f"ML_ASSETS_KUBERNETES_{name.upper()}" for name in KubernetesSettings.model_fields
    }


def test_each_key_has_a_meaning() -> None:
    pages = ("dataset.md", "feature-table.md", "training-pipeline.md")
    assert [row for page in pages for row in _rows(page) if len(row[3]) < len("Not given.")] == []


def test_examples_come_from_declarations() -> None:
    examples = {row[0]: row[4] for row in _rows("training-pipeline.md") if len(row) > 4}
    assert examples["`label_known_at`"] == "`label_known_at: label_known_at`"


@pytest.mark.parametrize("page", ["dataset.md", "feature-table.md", "training-pipeline.md"])
def test_each_key_has_an_example_but_sections(page: str) -> None:
    """The keys of a section have examples of their own."""
    assert [row[:2] for row in _rows(page) if len(row) < 5 and "](#" not in row[1]] == []


def _commands(command: click.Command, path: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield f"{path} {name}".strip()
            yield from _commands(below, f"{path} {name}".strip())


def test_each_command_has_a_heading() -> None:
    text = PAGES[Path("docs", "reference", "commands.md")]
    assert re.findall(r"^###+ (.+)$", text, re.MULTILINE) == list(_commands(cli.group))
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(cli.SECTIONS)


def _places(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for one in nav:
            yield from _places(one)
    elif isinstance(nav, dict):
        yield from _places(list(nav.values()))


def test_the_navigation_lists_every_page_once() -> None:
    text = re.sub(r"slugify: .*\}", "slugify: x}", (ROOT / "mkdocs.yml").read_text())
    docs = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert sorted(_places(yaml.safe_load(text)["nav"])) == sorted([*docs, *OUTSIDE.values()])


@pytest.mark.parametrize(
    ("source", "place", "link", "there"),
    [
        ("README.md", "project.md", "[a](docs/concepts/lake.md#b)", "[a](concepts/lake.md#b)"),
        (
            "docs/concepts/lake.md",
            "concepts/lake.md",
            "[a](../../CONTRIBUTING.md)",
            "[a](../contributing.md)",
        ),
        ("docs/concepts/lake.md", "concepts/lake.md", "[`a`](../../ml_assets/cli/data.py)", "`a`"),
        ("docs/README.md", "README.md", "![a](images/lineage.png)", "![a](images/lineage.png)"),
    ],
)
def test_a_link_leads_to_its_place_on_the_site(source: str, place: str, link: str, there: str) -> None:
    assert on_site(link, source, place) == there

"""Versions of servers that more than one file names: those of the pinned Go modules."""

import re

import pytest

from deployment.testbed.build import MODULES, read_module
from ml_assets.foundation.checkout import ROOT

MODULES_WITH_FLAGS = sorted(path.parent.name for path in MODULES.glob("*/ldflags"))


@pytest.mark.parametrize("name", MODULES_WITH_FLAGS)
def test_a_program_says_the_version_it_is_built_from(name: str) -> None:
    module = read_module(name)
    major, minor, _ = module.version.removeprefix("v").split(".")
    assert set(re.findall(r"\d+\.\d+\.\d+", module.ldflags)) == {module.version.removeprefix("v")}
    assert re.findall(r"gitMajor=(\d+)", module.ldflags) in ([], [major])
    assert re.findall(r"gitMinor=(\d+)", module.ldflags) in ([], [minor])


@pytest.mark.parametrize(
    ("file", "pattern", "name"),
    [
        ("deployment/compose/compose.yaml", r"lakeFS ([\d.]+\d) by digest", "lakefs"),
        ("docs/how-to/kubernetes.md", r"Kubernetes ([\d.]+\d) and CoreDNS from pinned", "kubernetes"),
        ("ml_assets_tests/cluster/test_cluster.py", r'pinned = "v([\d.]+)"', "kubernetes"),
    ],
)
def test_another_file_names_the_version_that_is_tested(file: str, pattern: str, name: str) -> None:
    assert re.findall(pattern, (ROOT / file).read_text()) == [read_module(name).version.removeprefix("v")]


def test_the_page_asks_for_a_go_that_builds_every_module() -> None:
    declared = [
        re.findall(r"^go ([\d.]+)$", (folder / "go.mod").read_text(), re.MULTILINE)[0]
        for folder in MODULES.iterdir()
        if (folder / "go.mod").is_file()
    ]
    newest = max(declared, key=lambda one: [int(part) for part in one.split(".")])
    said = re.findall(r"Go ([\d.]+\d) or newer", (ROOT / "docs" / "how-to" / "kubernetes.md").read_text())
    assert said == [newest]

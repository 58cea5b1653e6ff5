"""A change of a pipeline in an environment: only what it touches is built, a model is compared, and all is merged."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ml_assets.components import FeatureTable
from ml_assets_tests.cli import sales_without_season
from ml_assets_tests.cli.conftest import WEEK
from ml_assets_tests.cli.terminal import Terminal

SALES_FEATURES = "features/sales_features"
WEEKS = f"2023-02-06..{WEEK}"
"""Weeks of the window of the first partition."""


@pytest.fixture
def home(filled_terminal: Terminal, tmp_path: Path) -> Terminal:
    """A home of its own, in which the first week of `store_demand` is trained and registered."""
    shutil.copytree(filled_terminal.home, tmp_path / "home", symlinks=True)
    terminal = Terminal(tmp_path / "home")
    said = terminal("launch", "store_demand", WEEK)
    assert said.status == 0, said.err
    return terminal


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Edit the feature function, when called."""
    load = FeatureTable.load.__func__

    def edit() -> None:
        def with_other_function(cls: type[FeatureTable], spec: Any, context: Any) -> FeatureTable:
            if spec.name == "sales_features":
                spec = spec.model_copy(update={"function": f"{sales_without_season.__name__}.without_season"})
            return load(cls, spec, context)

        monkeypatch.setattr(FeatureTable, "load", classmethod(with_other_function))

    return edit


def _objects(home: Path) -> int:
    return sum(1 for path in (home / "lake" / "local" / "objects").rglob("*") if path.is_file())


@pytest.mark.nightly
def test_a_change_of_features_is_built_compared_and_merged(
    home: Terminal, edited: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _objects(home.home)
    assert home("env", "create", "no_season").status == 0
    assert _objects(home.home) == before
    monkeypatch.setenv("ML_ASSETS_ENV", "no_season")
    assert "stale" not in home("plan", "store_demand", WEEK).out
    edited()
    planned = home("plan", "store_demand", WEEK).out
    assert "stale" in planned, planned
    assert "datasets/sales:" not in planned, planned
    for arguments in ((SALES_FEATURES, WEEKS), ("store_demand", WEEK)):
        said = home("launch", *arguments)
        assert said.status == 0, said.err
    monkeypatch.delenv("ML_ASSETS_ENV")
    said = home("env", "diff", "no_season")
    assert said.status == 0, said.err
    assert "48 partitions in 1 table differ." in said.out
    assert "## Model store_demand" in said.out
    assert "against version 1 (1.0.0) of main" in said.out
    assert re.search(r"\n## store_demand: Metrics\n\n_[\d,]+ rows, the same for both", said.out), said.out
    assert "stale" in home("plan", "store_demand", WEEK).out
    before = _objects(home.home)
    said = home("env", "merge", "no_season")
    assert said.status == 0, said.err
    assert f"{SALES_FEATURES}: 48 partitions" in said.out
    assert _objects(home.home) == before
    planned = home("plan", "store_demand", WEEK).out
    assert "stale" not in planned, planned
    assert home("env", "drop", "no_season").status == 0

"""Terminals over an empty home and over one where `store_demand` is ready, and a source that can be spoiled."""

import functools
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.components import TrainingPipeline
from ml_assets.defs.store_demand import source
from ml_assets.model.release.rules import ReleaseSection
from ml_assets_tests.cli.terminal import Terminal

WEEK = "2024-01-01"
TRAINED_WEEK = "2024-01-08"
"""Partitions of `store_demand` whose windows `filled_terminal` can fill; one test module trains the second."""
HONEST = source.read_sales


@pytest.fixture(scope="session", autouse=True)
def _one_person_decides() -> Iterator[None]:
    """Let one person release `store_demand`: its declaration asks for an approval and a canary, which have tests."""
    load = TrainingPipeline.load.__func__

    def loaded(cls: type[TrainingPipeline], spec: Any, context: Any) -> TrainingPipeline:
        declared = spec.release.approval is not None and spec.release.canary is not None
        if spec.name == "store_demand" and declared:  # not what a test declares instead
            spec = spec.model_copy(update={"release": ReleaseSection()})
        return load(cls, spec, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingPipeline, "load", classmethod(loaded))
        yield


@pytest.fixture
def terminal(tmp_path: Path, _empty_tracker: Path) -> Terminal:
    """Return a terminal in an empty home whose tracker has no runs."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(_empty_tracker, home / "mlflow.db")
    return Terminal(home)


@pytest.fixture(scope="session")
def filled_terminal(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Terminal:
    """Return a terminal in a home with all weeks that both partitions of `store_demand` need."""
    home = tmp_path_factory.mktemp("filled")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    terminal = Terminal(home)
    for table, first in (("datasets/sales", "2023-01-09"), ("features/sales_features", "2023-02-06")):
        said = terminal("launch", table, f"{first}..{TRAINED_WEEK}")
        assert said.status == 0, said.err
    return terminal


@pytest.fixture
def wrong_sales(monkeypatch: pytest.MonkeyPatch) -> dict[str, pl.Expr]:
    """Make the source of the sales report wrongly: week → expression for its units."""
    wrong: dict[str, pl.Expr] = {}

    @functools.wraps(HONEST)  # the code that makes the table is the same: it is the system that lies
    def read_sales(week: date) -> pl.DataFrame:
        rows = HONEST(week)
        return rows.with_columns(wrong[week.isoformat()]) if week.isoformat() in wrong else rows

    monkeypatch.setattr(source, "read_sales", read_sales)
    return wrong


@pytest.fixture
def redeclared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Edit the declaration of `store_demand`: top-level attributes → their values, or functions of the present ones."""
    load = TrainingPipeline.load.__func__

    def edit(**changes: Any) -> None:
        def edited(cls: type[TrainingPipeline], spec: Any, context: Any) -> TrainingPipeline:
            if spec.name == "store_demand":
                new = {
                    name: one(getattr(spec, name)) if callable(one) else one for name, one in changes.items()
                }
                spec = spec.model_copy(update=new)
            return load(cls, spec, context)

        monkeypatch.setattr(TrainingPipeline, "load", classmethod(edited))

    return edit

"""Commands and functions that only read, in a home that does not exist: they answer, and the home is still missing."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml_assets.notebook import NotFound, features, load_model, open_snapshot
from ml_assets_tests.cli.terminal import Terminal
from resources.settings import Settings

MODEL, TABLE = "store_demand", "features/sales_features"
READS = (
    ("accounts", "list"),
    ("data", "log"),
    ("env", "list"),
    ("history", MODEL),
    ("lake", "audit"),
    ("leaktest", TABLE),
    ("ledger", "current"),
    ("ledger", "verify"),
    ("rules", "show", MODEL),
)


@pytest.mark.parametrize("typed", READS, ids=" ".join)
def test_a_command_that_reads_makes_no_home(tmp_path: Path, typed: tuple[str, ...]) -> None:
    said = Terminal(home := tmp_path / "nowhere")(*typed)
    assert "Traceback" not in said.err
    assert said.status in (0, 1), said.err
    assert not home.exists()


@pytest.mark.parametrize(
    "read",
    [
        lambda settings: load_model(f"{MODEL}@production", settings=settings),
        lambda settings: open_snapshot(f"{MODEL}/2024-01-08", settings=settings),
        lambda settings: features(TABLE, settings=settings).at({}, datetime(2024, 1, 8, tzinfo=UTC)),
    ],
    ids=["load_model", "open_snapshot", "features"],
)
def test_a_notebook_makes_no_home(tmp_path: Path, read: Callable[[Settings], object]) -> None:
    home = tmp_path / "nowhere"
    with suppress(NotFound):
        read(Settings(home=home))
    assert not home.exists()

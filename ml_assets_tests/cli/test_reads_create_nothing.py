"""Commands and functions that only read, in a home that does not exist: they answer, and the home is still missing."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ml_assets
from ml_assets.context import Context, NotFound
from ml_assets_tests.cli.terminal import Terminal

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
        lambda context: context.load_model(f"{MODEL}@production"),
        lambda context: context.open_snapshot(f"{MODEL}/2024-01-08"),
        lambda context: context.features(TABLE).at({}, datetime(2024, 1, 8, tzinfo=UTC)),
        lambda context: context.data.log(),
        lambda context: context.env.list(),
        lambda context: context.history(MODEL),
        lambda context: context.show(MODEL),
        lambda context: context.plan(MODEL, "2024-01-08"),
    ],
    ids=["load_model", "open_snapshot", "features", "data.log", "env.list", "history", "show", "plan"],
)
def test_a_context_makes_no_home(tmp_path: Path, read: Callable[[Context], object]) -> None:
    home = tmp_path / "nowhere"
    with suppress(NotFound):
        read(ml_assets.open(home))
    assert not home.exists()

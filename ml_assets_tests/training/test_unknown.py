"""Categories that read as unknown in training: which ones, and what the model answers to one it has not seen."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ml_assets.data.features.encoding import UNKNOWN
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.spec import InputColumns, split_by_time
from ml_assets.data.snapshots.split_reader import InputSpec, Snapshot, SourceValues
from ml_assets.model.training.data import preprocess
from ml_assets.model.training.data.batches import SplitReader
from ml_assets.model.training.data.order import RowOrder
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.data.preprocess import drop_categories
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.loop import fit
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import prepare
from ml_assets.model.training.step.load import build_model, predict
from ml_assets_tests.snapshots.chosen_rows import chosen_rows, taken
from ml_assets_tests.training.small_jobs import ROW_SPEC, small_job
from resources.job.errors import BadConfiguration
from resources.job.training_settings import TrainingSettings

SHOPS, NEW_SHOPS, DAYS, ROWS_A_DAY = 40, 60, 20, 300
IS_SEEN = pl.col("shop").cast(pl.Int64) < SHOPS


@given(
    rows=st.integers(0, 300),
    columns=st.integers(0, 4),
    share=st.floats(0, 0.99),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
    order=st.randoms(),
)
def test_a_category_is_dropped_by_its_place_alone(
    rows: int, columns: int, share: float, seed: int, epoch: int, order: object
) -> None:
    """Neither the batch nor the rank of a row changes the choice."""
    row, category = np.arange(rows) * 7, np.ones((rows, columns), dtype=np.int64)
    drop_categories(category, row, share, seed, epoch)
    mixed = np.random.default_rng(seed).permutation(rows)
    again = np.ones((rows, columns), dtype=np.int32)[mixed]
    drop_categories(again, row[mixed], share, seed, epoch)
    assert np.array_equal(again, category[mixed])
    assert share > 0 or (category == 1).all()


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_so_large_a_share_of_each_column_is_dropped_anew_each_epoch(share: float) -> None:
    assert preprocess.UNKNOWN == UNKNOWN
    dropped = []
    for epoch in range(3):
        category = np.ones((20_000, 3), dtype=np.int64)
        drop_categories(category, np.arange(20_000), share, seed=1, epoch=epoch)
        dropped.append(category == UNKNOWN)
    columns = np.concatenate(dropped, axis=1).astype(float)
    deviation = (share * (1 - share) / 20_000) ** 0.5
    assert np.abs(columns.mean(axis=0) - share).max() < 5 * deviation
    correlation = np.corrcoef(columns.T) - np.eye(9)
    assert np.abs(correlation).max() < 5 / 20_000**0.5


def test_ranks_drop_what_one_rank_drops_whatever_step_they_begin_with(snapshot: Snapshot) -> None:
    reader = SplitReader(snapshot, "train", torch.device("cpu"))
    order = RowOrder(shard_units=reader.shard_units, global_batch=100, seed=5, lanes=6)
    with Prefetcher(order, reader, 0, 1, 0, 0.2) as prefetcher:
        alone = [prefetcher.merged(step) for step in range(25)]
    epoch = np.concatenate([batch.category.numpy() for batch in alone[: order.steps_per_epoch]])
    assert 0.15 < (epoch == UNKNOWN).mean() < 0.25
    for world_size, first in ((2, 0), (3, 9), (6, 14)):
        feeds = [Prefetcher(order, reader, rank, world_size, first, 0.2) for rank in range(world_size)]
        for step in range(first, first + 8):
            parts = [prefetcher.merged(step) for prefetcher in feeds]
            assert np.array_equal(np.concatenate([part.row for part in parts]), alone[step].row)
            assert torch.equal(torch.cat([part.category for part in parts]), alone[step].category)
        for prefetcher in feeds:
            prefetcher.close()


def test_a_share_that_is_none_is_refused() -> None:
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match="category_dropout\n  Input should be"):
            TrainingSettings(category_dropout=share)


class Shops(nn.Module):
    """Numbers, and an embedding where there is a category."""

    category_plan = ("embeddings.*",)

    def __init__(self, inputs: object) -> None:
        super().__init__()
        cardinalities = inputs.cardinalities  # type: ignore[attr-defined]
        self.embeddings = nn.ModuleList(nn.Embedding(size, 3) for size in cardinalities)
        self.layers = nn.Sequential(nn.Linear(3 + 3 * len(cardinalities), 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        looked_up = [table(category[:, i]) for i, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([numeric, *looked_up], dim=1)).squeeze(1)


@pytest.fixture(scope="module")
def shops() -> pl.DataFrame:
    """Rows whose label depends on their shop; on the last days half of them are of shops that are new."""
    chance = np.random.default_rng(4)
    effect = chance.normal(0, 1, SHOPS + NEW_SHOPS)
    rows = DAYS * ROWS_A_DAY
    day = np.arange(rows) // ROWS_A_DAY
    shop = chance.integers(0, SHOPS, rows)
    is_new = (day >= DAYS - 4) & (chance.random(rows) < 0.5)
    shop = np.where(is_new, SHOPS + chance.integers(0, NEW_SHOPS, rows), shop)
    numbers = chance.normal(size=(rows, 3))
    logit = effect[shop] - 1 + 0.5 * numbers[:, 0]
    start = date(2024, 1, 1)
    return pl.DataFrame(
        {
            **{f"x{i}": numbers[:, i] for i in range(3)},
            "shop": shop.astype(str),
            "date": [start + timedelta(days=int(one)) for one in day],
            "label": (chance.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8),
            "label_known_at": [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=int(one)) for one in day],
        }
    )


@dataclass(frozen=True)
class ShopModel:
    """A model of the platform's loop."""

    seen: float
    """Log loss of holdout rows of shops that were in the training rows…"""
    new: float
    """…and of others."""
    embeddings: list[torch.Tensor]
    """Embeddings before and after the training."""


def trained(
    shops: pl.DataFrame, folder: Path, group: Group, categorical: list[str], **settings: float
) -> ShopModel:
    keys = shops["date"].unique().sort().cast(pl.String).to_list()
    inputs = InputColumns(numeric=("x0", "x1", "x2"), categorical=tuple(categorical))
    split = split_by_time(keys, train=DAYS - 6, validation=2, holdout=4)
    chosen = chosen_rows(shops, split, ROW_SPEC, inputs)
    snapshot = build_snapshot(chosen, source=SourceValues(table="features/small"), into=folder / "snapshots")
    changes = {
        "epochs": 6,
        "global_batch": 128,
        "learning_rate": 0.01,
        "checkpoint_every_steps": 10_000,
        "log_every_steps": 100,
    }
    run = prepare(small_job(snapshot, f"{__name__}.Shops", workers=1, **(changes | settings)), folder, group)
    run.resume()
    before = [table.weight.detach().clone() for table in run.model.core.embeddings]
    fit(run, RowLog(folder, 1, 0), StopRequest(), Heartbeat(0))
    holdout = snapshot.read("holdout")
    scores = predict(run.model.eval(), "binary", holdout)
    losses = -np.log(np.where(holdout.label == 1, scores, 1 - scores))
    is_new = taken(chosen, "holdout")["shop"].cast(pl.Int64).to_numpy() >= SHOPS
    after = [table.weight.detach() for table in run.model.core.embeddings]
    return ShopModel(float(losses[~is_new].mean()), float(losses[is_new].mean()), before + after)


def test_an_unseen_category_is_answered_no_worse_than_by_the_mean(
    shops: pl.DataFrame, tmp_path: Path, group: Group
) -> None:
    """The loss is no higher than that of a model without the column either."""
    column = trained(shops, tmp_path / "column", group, ["shop"])
    without = trained(shops, tmp_path / "without", group, [])
    seen, new = (shops.filter(known)["label"].to_numpy() for known in (IS_SEEN, ~IS_SEEN))
    mean = -np.log(np.where(new == 1, seen.mean(), 1 - seen.mean())).mean()
    assert column.new < mean
    assert column.new < without.new + 0.005
    assert column.seen < without.seen - 0.05
    begun, learned = column.embeddings
    assert torch.allclose(begun[UNKNOWN], begun[UNKNOWN + 1 :].mean(dim=0))
    assert (learned[UNKNOWN] - begun[UNKNOWN]).abs().max() > 0.05


def test_without_dropout_the_unknown_category_is_never_trained(
    shops: pl.DataFrame, tmp_path: Path, group: Group
) -> None:
    begun, learned = trained(shops, tmp_path, group, ["shop"], category_dropout=0.0, epochs=1).embeddings
    assert torch.allclose(learned[UNKNOWN], begun[UNKNOWN], rtol=0.01)


class OtherTables(nn.Module):
    """Tables of the same size as a category's: pairs of ids, and a table for the hour of the day."""

    category_plan: tuple[str, ...] = ()

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__()
        size = inputs.cardinalities[0]
        self.pairs, self.colour, self.hour = (nn.Embedding(size, 1) for _ in range(3))
        self.drawn = {name: table.weight.detach().clone() for name, table in self.named_children()}

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        first = category[:, 0]
        return (self.pairs(first) + self.colour(first) + self.hour(first)).squeeze(1)


class OneTable(OtherTables):
    category_plan = ("colour",)


class TwoTables(OtherTables):
    category_plan = ("colour", "hour")


def changed_tables(snapshot: Snapshot, kind: type[OtherTables]) -> list[str]:
    """Return the tables of a fresh model that differ from what the model drew."""
    core = build_model(small_job(snapshot, f"{__name__}.{kind.__name__}"), snapshot.inputs).core
    assert isinstance(core, OtherTables)
    return [name for name, table in core.named_children() if not torch.equal(table.weight, core.drawn[name])]


def test_only_declared_tables_begin_unknown_at_the_mean(snapshot: Snapshot) -> None:
    """Row 0 of any table with as many rows as a category was overwritten."""
    assert changed_tables(snapshot, OtherTables) == []
    assert changed_tables(snapshot, OneTable) == ["colour"]


def test_a_category_plan_that_does_not_fit_the_columns_is_refused(snapshot: Snapshot) -> None:
    with pytest.raises(BadConfiguration, match=r"colour \(\d+ ids\), hour.*nn\.Embedding"):
        changed_tables(snapshot, TwoTables)

"""Lists in training: whole in every shard, lane and pass; a loss that is a sum over lists. `layouts.test_lists` trains
them."""

from collections import Counter
from datetime import timedelta
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.snapshots.row_choice import require_lists_begin
from ml_assets.data.snapshots.row_rules import LABEL_TOO_LATE, LIST_LACKS_ROWS, NO_LABEL
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, SnapshotError
from ml_assets.model.training import measured
from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import RowOrder, contiguous
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.step.objectives import objective_of
from ml_assets_tests.snapshots.chosen_rows import taken
from ml_assets_tests.training.list_snapshots import chosen_lists, list_snapshot, sessions
from resources.job.errors import BadConfiguration


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return list_snapshot(tmp_path_factory.mktemp("lists"))


def rows_of_lists(batch: Batch) -> list[list[int]]:
    """Return the rows of each list of a batch, in the batch's order."""
    assert batch.lists is not None
    found: dict[int, list[int]] = {}
    previous = None
    for number, row in zip(batch.lists.tolist(), batch.row.tolist(), strict=True):
        assert number == previous or number not in found  # rows of a list are neighbours
        found.setdefault(number, []).append(row)
        previous = number
    return list(found.values())


def whole_lists(table: pl.DataFrame) -> set[tuple[int, ...]]:
    numbered = table.with_row_index("row").group_by("session").agg("row")
    return {tuple(rows) for rows in numbered["row"].to_list()}


def test_a_shard_holds_whole_lists_of_neighbouring_rows(snapshot: Snapshot) -> None:
    assert len(snapshot.shards_of("train")) > 2
    table, found = sessions(), list[tuple[int, ...]]()
    for shard in snapshot.shards:
        rows = snapshot.map(shard)
        assert rows.lists is not None
        reader = Batch(
            numeric=torch.from_numpy(rows.numeric.copy()),
            category=torch.from_numpy(rows.category.astype(np.int64)),
            label=torch.from_numpy(rows.label.copy()),
            row=rows.row,
            lists=torch.from_numpy(rows.lists.copy()),
        )
        lists = rows_of_lists(reader)
        assert shard.lists == shard.units == len(lists)
        found += [tuple(one) for one in lists]
        assert rows.label.tolist() == table["label"].to_numpy()[rows.row].tolist()
    assert set(found) == whole_lists(table)
    assert len(found) == len(set(found))
    sizes = [shard.lists or 0 for shard in snapshot.shards_of("train")]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=10, deadline=None)
@given(global_batch=st.integers(1, 30), lanes=st.integers(1, 6), passes=st.integers(1, 5), data=st.data())
def test_each_list_is_whole_in_a_lane_and_in_a_pass_once_an_epoch(
    snapshot: Snapshot, global_batch: int, lanes: int, passes: int, data: st.DataObject
) -> None:
    reader = SplitReader(snapshot, "train", torch.device("cpu"))
    order = RowOrder(shard_units=reader.shard_units, global_batch=global_batch, seed=5, lanes=lanes)
    world_size = data.draw(st.integers(1, lanes))
    taken: list[tuple[int, ...]] = []
    for rank in range(world_size):
        with (
            Prefetcher(order, reader, rank, world_size, 0) as by_lane,
            Prefetcher(order, reader, rank, world_size, 0) as merged,
        ):
            for step in range(order.steps_per_epoch):
                lists = [one for lane in by_lane.by_lane(step) for one in rows_of_lists(lane)]
                parts = merged.merged(step).in_passes(passes)
                assert len(parts) == passes
                assert [one for part in parts for one in rows_of_lists(part)] == lists
                taken += [tuple(one) for one in lists]
    train = {tuple(rows) for rows in whole_lists(sessions()) if rows[0] < snapshot.rows("train")}
    assert len(taken) == len(train)
    assert set(taken) == train


def test_validation_reads_each_list_whole(snapshot: Snapshot) -> None:
    reader = SplitReader(snapshot, "validation", torch.device("cpu"))
    taken = [
        tuple(one)
        for lane in range(4)
        for units in contiguous(reader.shard_units, lane, 4, 2)
        for one in rows_of_lists(reader.take(units))
    ]
    assert len(taken) == sum(reader.shard_units)
    assert set(taken) < whole_lists(sessions())


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    cut=st.integers(0, 5),
    shift=st.floats(-5, 5),
    data=st.data(),
)
def test_the_loss_is_the_sum_over_lists_in_any_grouping(
    sizes: list[int], cut: int, shift: float, data: st.DataObject
) -> None:
    """It is the cross-entropy of each list by itself; a number added to all scores of a list changes nothing."""
    rows = sum(sizes)
    label = torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=rows, max_size=rows)))
    score = torch.tensor(data.draw(st.lists(st.floats(-4, 4), min_size=rows, max_size=rows))).float()
    lists = torch.repeat_interleave(torch.arange(len(sizes)) * 17 + 3, torch.tensor(sizes))
    batch = Batch(
        numeric=torch.zeros(rows, 0),
        category=torch.zeros(rows, 0, dtype=torch.int64),
        label=label,
        row=np.arange(rows),
        lists=lists,
    )
    objective = objective_of("ranking 5")
    score.requires_grad_()
    loss = objective.loss(score, batch)
    expected = torch.zeros(())
    for labels, scores in zip(label.split(sizes), score.detach().split(sizes), strict=True):
        if labels.sum() > 0:
            expected += -(labels / labels.sum() * scores.log_softmax(0)).sum()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)
    loss.backward()
    assert score.grad is not None
    assert torch.isfinite(score.grad).all()
    moved = score.detach() + shift * (lists == lists[0])
    assert objective.loss(moved, batch).item() == pytest.approx(expected.item(), abs=1e-3)
    first = sum(sizes[:cut])
    parts = zip(batch.split([first, rows - first]), score.detach().split([first, rows - first]), strict=True)
    total = sum(objective.loss(scores, part).item() for part, scores in parts)
    assert total == pytest.approx(expected.item(), abs=1e-4)


def test_rows_without_lists_cannot_be_ranked() -> None:
    batch = Batch(
        numeric=torch.zeros(2, 0),
        category=torch.zeros(2, 0, dtype=torch.int64),
        label=torch.zeros(2),
        row=np.arange(2),
    )
    with pytest.raises(BadConfiguration, match=r"form none: .* \(evaluation\.group\)"):
        objective_of("ranking").loss(torch.zeros(2), batch)


def test_lists_in_several_partitions_are_refused_by_name() -> None:
    """Also if no split cuts them: the splits of tomorrow lie elsewhere."""
    table = sessions()
    with pytest.raises(SnapshotError) as cut:
        chosen_lists(table.with_columns(pl.col("session") % 1000))
    assert all(fact in str(cut.value) for fact in ("5 of 5 lists", ": session ", "a user's day"))
    within = pl.when(pl.col("session") == 3002).then(2001).otherwise("session").alias("session")
    with pytest.raises(SnapshotError) as uncut:
        chosen_lists(table.with_columns(within))
    assert all(fact in str(uncut.value) for fact in ("1 of 69 lists", "session 2001 is in "))


def test_lists_that_the_start_of_the_window_cuts_are_refused() -> None:
    chosen = chosen_lists(sessions())
    first = chosen.split.train[0]
    require_lists_begin(chosen, pl.DataFrame({"session": [-1, -2]}), "the day before")
    with pytest.raises(SnapshotError) as cut:
        require_lists_begin(chosen, pl.DataFrame({"session": ["0", "-1", "0"]}), "the day before")
    said = f"the start of the window, {first}, cuts 1 list in two: session 0 has rows in the day before, too."
    assert said in str(cut.value)


@settings(max_examples=20, deadline=None)
@given(lacking=st.sets(st.integers(0, 600), max_size=12), late=st.sets(st.integers(0, 600), max_size=12))
def test_a_list_is_taken_with_all_its_rows_or_not_at_all(lacking: set[int], late: set[int]) -> None:
    """Without the rows that come late, the others would be easier to order than they were."""
    table = sessions()
    row = pl.int_range(pl.len())
    never = pl.col("label_known_at").max() + timedelta(days=400)
    table = table.with_columns(
        pl.when(row.is_in(list(lacking))).then(None).otherwise("label").alias("label"),
        pl.when(row.is_in(list(late))).then(never).otherwise("label_known_at").alias("label_known_at"),
    )
    chosen = chosen_lists(table)
    whole = dict(table.group_by("session").len().iter_rows())
    gone = set(table[sorted(lacking | late)]["session"]) if lacking | late else set[int]()
    found = dict(pl.concat([taken(chosen, split) for split in SPLITS]).group_by("session").len().iter_rows())
    assert found == {one: rows for one, rows in whole.items() if one not in gone}
    reasons = Counter[str]()
    for one in chosen.index():
        reasons.update(one.excluded)
    assert reasons[NO_LABEL] == len(lacking)
    assert reasons[LABEL_TOO_LATE] == len(late - lacking)
    assert reasons[LIST_LACKS_ROWS] == sum(whole[one] for one in gone) - len(lacking | late)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            pl.when(pl.col("session") == 3002).then(None).otherwise("session").alias("session"),
            "is null in 12 of 602 rows",
        ),
        (pl.col("label") - 1, "label 'label' is negative in "),
        (pl.lit(1.0).alias("label"), "label 'label' is 1.0 in all 430 training rows"),
        (
            (pl.col("session") % 2).cast(pl.Float64).alias("label"),
            "none of the 50 lists of the train split has rows of different relevance ('label')",
        ),
    ],
)
def test_labels_and_lists_that_teach_no_order_are_refused(change: pl.Expr, said: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        chosen_lists(sessions().with_columns(change))
    assert said in str(refused.value)


def test_a_pass_of_the_exporter_has_no_more_rows_for_lists(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 4,096 lists at once, however many rows they had."""
    monkeypatch.setattr(measured, "_ROWS_OF_EXPORTER", 20)
    reader, rows = SplitReader(snapshot, "validation", torch.device("cpu")), list[int]()

    def model(numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        rows.append(len(numeric))
        return numeric[:, 0].nan_to_num()

    units = sum(reader.shard_units)
    by_default = measured.loss_of_some(cast(Any, model), objective_of("ranking"), reader, units)
    assert max(rows) <= 40
    assert sum(rows) == reader.rows
    at_once = measured.loss_of_some(cast(Any, model), objective_of("ranking"), reader, units, units)
    assert by_default == pytest.approx(at_once)

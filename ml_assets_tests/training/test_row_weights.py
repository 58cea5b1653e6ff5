"""Weights in the loss of a training: exact sums in any grouping, and the rows that a weight stands for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.foundation.objective_facts import NAMES, facts_of
from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import RowOrder
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.step.objectives import objective_of
from ml_assets_tests.training.small_jobs import feature_table, small_snapshot, with_weights
from resources.job.errors import BadConfiguration

WEIGHTED = [name for name in NAMES if facts_of(name).takes_weights]


def batch_of(label: torch.Tensor, weight: torch.Tensor | None = None) -> Batch:
    rows = len(label)
    empty = torch.zeros(rows, 0)
    return Batch(numeric=empty, category=empty.long(), label=label, row=np.arange(rows), weight=weight)


@pytest.mark.parametrize("name", WEIGHTED)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_row_of_weight_n_has_the_loss_and_gradient_of_n_rows(name: str, data: st.DataObject) -> None:
    rows, has_classes = data.draw(st.integers(1, 8)), facts_of(name).has_classes
    times = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    labels = st.integers(0, 1 if facts_of(name).is_zero_or_one else 2)
    label = torch.tensor(data.draw(st.lists(labels, min_size=rows, max_size=rows))).float()
    width = 3 if has_classes else 1
    scores = data.draw(st.lists(st.floats(-3, 3, width=32), min_size=width * rows, max_size=width * rows))
    output = torch.tensor(scores).reshape(rows, width) if has_classes else torch.tensor(scores)
    objective, found = objective_of(name), list[tuple[float, torch.Tensor]]()
    for weight, again in (
        (times.float(), torch.arange(rows)),
        (None, torch.arange(rows).repeat_interleave(times)),
    ):
        given_output = output.clone().requires_grad_()
        loss = objective.loss(given_output[again], batch_of(label[again], weight))
        loss.backward()
        assert given_output.grad is not None
        found.append((loss.item(), given_output.grad))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-4)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-5)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_one_have_the_gradient_of_rows_without_weights(name: str) -> None:
    """Bit for bit: only the weights make a weighted training another one."""
    torch.manual_seed(0)
    output = torch.randn((50, 3) if facts_of(name).has_classes else 50)
    label = torch.randint(0, 2, (50,)).float()
    gradients: list[torch.Tensor | None] = []
    for weight in (None, torch.ones(50)):
        given_output = output.clone().requires_grad_()
        objective_of(name).loss(given_output, batch_of(label, weight)).backward()
        gradients.append(given_output.grad)
    one, other = gradients
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WEIGHTED])
def test_an_objective_without_weights_refuses_weighted_rows(name: str) -> None:
    with pytest.raises(BadConfiguration, match=r"take any: .*features\.weight"):
        objective_of(name).loss(torch.zeros(2), batch_of(torch.zeros(2), torch.ones(2)))


def test_each_row_keeps_its_weight_in_every_lane_and_pass(tmp_path: Path) -> None:
    table = with_weights(feature_table())
    snapshot = small_snapshot(tmp_path, table, weight="weight")
    rows = snapshot.read("train")
    assert rows.weight is not None
    of_row = dict(zip(rows.row.tolist(), rows.weight.tolist(), strict=True))
    reader = SplitReader(snapshot, "train", torch.device("cpu"))
    order = RowOrder(shard_units=reader.shard_units, global_batch=48, seed=5, lanes=4)
    seen: dict[int, float] = {}
    for rank in range(2):
        with Prefetcher(order, reader, rank, 2, 0) as batches:
            for step in range(order.steps_per_epoch):
                lanes = batches.by_lane(step)
                for part in (part for lane in lanes for part in lane.in_passes(3)):
                    assert part.weight is not None
                    seen |= zip(part.row.tolist(), part.weight.tolist(), strict=True)
    assert seen == of_row

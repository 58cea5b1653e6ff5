"""The default network for tables: members, missing numbers, categories, and each objective."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.tabular import PAST_RATE, tabular
from ml_assets.model.training.data.batches import Batch
from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.step.load import build_model
from ml_assets.model.training.step.objectives import objective_of
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.errors import BadConfiguration

ENDS = tuple(float(end) for end in np.linspace(-2, 2, 17))
ROWS = 512


def spec(**facts: Any) -> InputSpec:
    return InputSpec(
        **{
            "numeric": ("bent", "never"),
            "fill": (0.0, 0.0),
            "quantiles": (ENDS, ()),
            "means": (0.0, 0.0),
            "scales": (1.0, 1.0),
            "categorical": ("place",),
            "cardinalities": (4,),
            **facts,
        }
    )


def batch_of(label: torch.Tensor, numeric: torch.Tensor, category: torch.Tensor) -> Batch:
    lists = torch.arange(len(label)) // 8
    return Batch(row=np.arange(len(label)), numeric=numeric, category=category, label=label, lists=lists)


def some_rows() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    numeric = torch.stack([4 * torch.rand(ROWS, generator=draw) - 2, torch.zeros(ROWS)], dim=1)
    numeric[::5, 0] = torch.nan
    return numeric, torch.randint(0, 4, (ROWS, 1), generator=draw)


def learned(model: FullModel, objective: str, batch: Batch, steps: int = 150) -> float:
    """Return the loss of a row after some steps of training."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        (objective_of(objective).loss(model(*batch.inputs), batch) / ROWS).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return float(objective_of(objective).loss(model(*batch.inputs), batch) / ROWS)


def full(inputs: InputSpec, **settings: Any) -> FullModel:
    torch.manual_seed(1)
    return FullModel(inputs, tabular(inputs, **settings))


@pytest.mark.parametrize(
    ("objective", "classes", "limit"),
    [
        ("binary", (), 0.2),
        ("regression", (), 20.0),
        ("quantile 0.5", (), 2.0),
        ("count", (), 0.9),
        ("multiclass", ("a", "b", "c"), 0.2),
        ("ranking", (), 2.0),
    ],
)
def test_it_learns_each_objective(objective: str, classes: tuple[str, ...], limit: float) -> None:
    """A bend, a missing number and a category decide."""
    numeric, category = some_rows()
    known = torch.nan_to_num(numeric[:, 0], nan=3.0)
    size = known.abs() + (category[:, 0] == 2)
    label, level, spread = {
        "binary": (size > 1.5, 0.0, 1.0),
        "regression": (1000 + 50 * size, 1075.0, 50.0),
        "quantile 0.5": (1000 + 50 * size, 1075.0, 50.0),
        "count": (size.round(), 0.5, 1.0),
        "multiclass": (size.clamp(0, 2.9).long(), 0.0, 1.0),
        "ranking": (size.round(), 0.0, 1.0),
    }[objective]
    inputs = spec(classes=classes, level=level, spread=spread)
    batch = batch_of(label.float(), numeric, category)
    model = full(inputs, members=4, dropout=0.0)
    objective_of(objective).check(model.eval()(*batch.inputs), batch, inputs.outputs)
    assert learned(model.train(), objective, batch) < limit


def test_members_learn_on_their_own_and_answer_together() -> None:
    numeric, category = some_rows()
    model = full(spec(), members=5, dropout=0.0)
    outputs = model.train()(numeric, category)
    assert outputs.shape == (5, ROWS)
    batch = batch_of((numeric[:, 0] > 0).float(), numeric, category)
    objective = objective_of("binary")
    alone = torch.stack([objective.loss(one, batch) for one in outputs])
    assert objective.loss(outputs, batch).item() == pytest.approx(alone.mean().item())
    assert torch.allclose(model.eval()(numeric, category), outputs.mean(dim=0), atol=1e-6)
    assert alone.std() > 0


def test_before_training_it_answers_with_the_level_of_the_label() -> None:
    numeric, category = some_rows()
    answers = full(spec(level=1000.0, spread=10.0)).eval()(numeric, category)
    assert (answers - 1000).abs().max() < 50


def test_a_number_that_was_never_missing_may_be_missing_later() -> None:
    """Its flag was never set, so its weights stayed where they began."""
    numeric, category = some_rows()
    model = full(spec())
    batch = batch_of((numeric[:, 0] > 0).float(), numeric, category)
    learned(model, "binary", batch, steps=20)
    lacking = numeric.clone()
    lacking[:, 1] = torch.nan
    with torch.no_grad():
        assert torch.equal(model(lacking, category), model(numeric, category))


@pytest.mark.parametrize("columns", ["numbers", "categories"])
def test_a_table_of_numbers_or_of_categories_alone(columns: str) -> None:
    numeric, category = some_rows()
    if columns == "numbers":
        model, inputs = full(spec(categorical=(), cardinalities=())), (numeric, category[:, :0])
    else:
        model, inputs = (
            full(spec(numeric=(), fill=(), quantiles=(), means=(), scales=())),
            (numeric[:, :0], category),
        )
    assert model.eval()(*inputs).isfinite().all()


def test_texts_and_old_training_sets_are_refused() -> None:
    with pytest.raises(BadConfiguration, match="write a network of your own"):
        tabular(spec(blob="picture"))
    with pytest.raises(BadConfiguration, match="without init_from"):
        tabular(spec(quantiles=()))


def test_it_follows_a_label_beyond_the_values_of_the_training_rows() -> None:
    """The label is a little more than its past, which grows to twice the largest value of the training rows."""
    past = torch.linspace(-2, 2, ROWS)
    unit = 50.0
    label = unit * (past + 0.1)
    level, spread = float(label.mean()), float(label.std())
    numeric = torch.stack([past / past.std(), torch.zeros(ROWS)], dim=1)
    category = torch.zeros((ROWS, 1), dtype=torch.long)
    later = 2 * numeric[-1:] + torch.zeros(1, 2)
    inputs = spec(level=level, spread=spread, scales=(unit * float(past.std()), 1.0))
    errors: dict[str, float] = {}
    for name in ("", "bent"):
        model = full(inputs, **({"past": name} if name else {}))
        learned(model, "regression", batch_of(label, numeric, category))
        with torch.no_grad():
            errors[name] = abs(float(model(later, category[:1])) - unit * 4.1) / spread
    assert errors["bent"] < 0.2
    assert errors["bent"] < errors[""] / 2


def test_it_learns_which_earlier_label_counts() -> None:
    inputs = spec(quantiles=(ENDS, ENDS), level=0.0, spread=1.0)
    network = tabular(inputs, past=["bent", "never"])
    numeric = torch.randn((ROWS, 2), generator=torch.Generator().manual_seed(7))
    label = numeric[:, 1].clone()
    learned(
        FullModel(inputs, network),
        "regression",
        batch_of(label, numeric, torch.zeros((ROWS, 1), dtype=torch.long)),
    )
    assert network.past_weights is not None
    useless, useful = torch.softmax(network.past_weights.detach() * PAST_RATE, dim=0).tolist()
    assert useful > 2 * useless


def test_it_begins_at_the_mean_of_the_earlier_labels_that_are_known() -> None:
    """Columns and label have units of their own; the first earlier label is 100 + 50 x, the second 300 + 20 x."""
    inputs = spec(quantiles=(ENDS, ENDS), means=(100.0, 300.0), scales=(50.0, 20.0), level=150.0, spread=7.0)
    network = tabular(inputs, past=["bent", "never"]).eval()
    numeric = torch.tensor([[1.0, 2.0], [1.0, math.nan], [math.nan, math.nan]])
    with torch.no_grad():
        answers = network(numeric, torch.zeros((3, 1), dtype=torch.long)).tolist()
    assert answers == pytest.approx([(150 + 340) / 2, 150, 150])


@pytest.mark.parametrize(
    ("past", "facts", "said"),
    [
        ("bend", {}, "no number called 'bend' as past: did you mean 'bent'?"),
        ("bent", {"classes": ("a", "b")}, "not to classes: leave it out"),
    ],
)
def test_a_past_that_cannot_be_added_is_refused(past: str, facts: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfiguration, match=re.escape(said)):
        tabular(spec(**facts), past=past)


@pytest.mark.parametrize("objective", ["binary", "count", "ranking"])
def test_a_past_is_refused_for_outputs_in_another_unit(tmp_path: Path, objective: str) -> None:
    """A count of 300 was added to the logarithm of a count; the training ended with a loss that was not finite."""
    snapshot = small_snapshot(tmp_path)
    job = small_job(snapshot, model="ml_assets.model.tabular.tabular", objective=objective)
    job = dataclasses.replace(job, hyperparameters={"past": [snapshot.inputs.numeric[0]]})
    with pytest.raises(BadConfiguration, match=f"the objective {objective} .*leave `past` out"):
        build_model(job, snapshot.inputs)
    for fits in ("regression", "quantile 0.9"):
        build_model(dataclasses.replace(job, objective=fits), snapshot.inputs)


@pytest.mark.parametrize(
    "setting",
    [
        {"members": 0},
        {"width": 0},
        {"width": 64.0},
        {"layers": 0},
        {"layers": True},
        {"embedding": 0},
        {"dropout": 1.0},
        {"dropout": "0.1"},
        {"past": None},
        {"past": [["bent"]]},
    ],
)
def test_settings_outside_their_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(BadConfiguration, match=f"as {name}, not "):
        tabular(spec(), **setting)


@pytest.mark.parametrize("objective", ["regression", "quantile 0.9"])
def test_the_unit_of_the_label_changes_no_gradient(tmp_path: Path, objective: str) -> None:
    """A quantile in units of 1e8 learned nothing: its gradients vanished beside the optimizer's epsilon."""
    snapshot = small_snapshot(tmp_path)
    job = small_job(snapshot, model="ml_assets.model.tabular.tabular", objective=objective)
    numeric = torch.randn((ROWS, len(snapshot.inputs.numeric)), generator=torch.Generator().manual_seed(1))
    category = torch.zeros((ROWS, len(snapshot.inputs.categorical)), dtype=torch.long)
    norms: list[float] = []
    for unit in (1.0, 2.0**-20, 2.0**27):
        inputs = dataclasses.replace(snapshot.inputs, level=0.0, spread=unit)
        model = build_model(job, inputs)
        batch = batch_of(unit * numeric[:, 0], numeric, category)
        torch.manual_seed(1)
        objective_of(objective).loss(model(*batch.inputs), batch).backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
    assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-4)

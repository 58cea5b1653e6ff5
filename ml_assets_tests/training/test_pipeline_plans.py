"""Models that can be dealt out over a pipeline of ranks, errors for the others, and the part of each rank."""

import re
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from ml_assets.model.training.parallel.pipeline import refuse_undivided, stage_of
from ml_assets.model.training.process.group import Group
from resources.job.errors import BadConfiguration


class Model(nn.Module):
    """Four layers in a row, one with a running mean."""

    def __init__(self, plan: Sequence[str], *, is_tied: bool = False) -> None:
        super().__init__()
        self.pipeline_plan = plan
        self.enter = nn.Linear(3, 5)
        self.blocks = nn.ModuleList([nn.Linear(5, 5), nn.BatchNorm1d(5)])
        self.leave, self.act = nn.Linear(5, 3), nn.ReLU()
        if is_tied:
            self.leave.weight = self.enter.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for part in (self.enter, *self.blocks, self.leave):
            values = part(values)
        return values


PLAN = ("enter", "blocks.*", "leave")


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_hold_each_parameter_once_and_compute_the_model(
    stages: int,
) -> None:
    """Stages together keep the name of each parameter."""
    torch.manual_seed(1)
    whole = Model(PLAN).eval()
    values = torch.randn(7, 3)
    expected = whole(values)
    names: list[str] = []
    for number in range(stages):
        part = Model(PLAN).eval()
        part.load_state_dict(whole.state_dict())
        group = Group(rank=number, world_size=stages, local_rank=0, local_ranks=1, device=torch.device("cpu"))
        values = stage_of(part, group, "fp32")(values)
        names += part.state_dict()
    assert torch.equal(values, expected)
    assert sorted(names) == sorted(whole.state_dict())


def test_being_asked_for_its_shapes_moves_nothing_that_a_stage_keeps() -> None:
    model = Model(PLAN)
    group = Group(rank=0, world_size=1, local_rank=0, local_ranks=1, device=torch.device("cpu"))
    stage = stage_of(model, group, "fp32")
    kept = {name: value.clone() for name, value in model.named_buffers()}
    assert stage(torch.full((2, 3), torch.nan)).requires_grad
    assert all(torch.equal(value, kept[name]) for name, value in model.named_buffers())
    stage(torch.ones(2, 3))
    assert not all(torch.equal(value, kept[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize(
    ("model", "stages", "said"),
    [
        (nn.Linear(2, 2), 2, "Linear has no pipeline_plan"),
        (
            Model(PLAN),
            5,
            "pipeline 5 is more than the 4 parts of Model: each worker needs a part, use 4 at most",
        ),
        (Model(("enter", "leave")), 2, "leaves out blocks.0.weight, blocks.0.bias, blocks.1.weight"),
        (Model(("enter", "layers.*")), 2, "names 'layers.*', but the model has no such part"),
        (Model((*PLAN, "act")), 5, "gives a worker only act of Model, which has nothing to train"),
        (Model(PLAN, is_tied=True), 2, "enter and leave share a parameter"),
        (Model(PLAN), 2, "blocks.1 (BatchNorm1d) keeps running statistics"),
    ],
)
def test_a_model_that_cannot_be_dealt_out_is_refused_with_the_reason(
    model: nn.Module, stages: int, said: str
) -> None:
    with pytest.raises(BadConfiguration, match=re.escape(said)):
        refuse_undivided(model, stages)

"""Models that can be cut over several ranks, and errors for the others."""

import re
from collections.abc import Mapping

import pytest
from torch import nn

from ml_assets.model.training.parallel.layouts import refuse_uncuttable
from resources.job.errors import BadConfiguration


class Attention(nn.Module):
    """Attention with only the attributes that the refusals read."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.enter, self.leave, self.norm = nn.Linear(8, 12), nn.Linear(12, 8), nn.LayerNorm(8)


class Model(nn.Module):
    """Two layers and a plan."""

    def __init__(self, plan: Mapping[str, str], heads: int = 6) -> None:
        super().__init__()
        self.tensor_plan = plan
        self.layers = nn.ModuleList(Attention(heads) for _ in range(2))
        self.words = nn.Embedding(10, 9)


PLAN = {"layers.*.enter": "colwise", "layers.*.leave": "rowwise"}


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_a_model_is_cut_where_everything_divides(ranks: int) -> None:
    refuse_uncuttable(Model(PLAN), ranks)


@pytest.mark.parametrize(
    ("model", "ranks", "said"),
    [
        (nn.Linear(2, 2), 2, "Linear has no tensor_plan"),
        (Model({}), 2, "Model has no tensor_plan"),
        (Model(PLAN), 8, "cannot divide the 6 heads of layers.0: 6 / 8 = 0.75; use 1 or 2 or 3 or 6"),
        (Model(PLAN, heads=8), 8, "the 12 outputs of layers.0.enter: 12 / 8 = 1.5"),
        (Model({"words": "colwise"}), 2, "the 9 outputs of words: 9 / 2 = 4.5; use 1 or 3 or 9"),
        (Model({"words": "rowwise"}), 3, "the 10 inputs of words"),
        (Model({"layers.*.norm": "colwise"}), 2, "layers.0.norm (LayerNorm) is 'colwise'"),
        (Model({"layers.*.enter": "columns"}), 2, "layers.0.enter (Linear) is 'columns'"),
        (Model({"enter": "colwise"}), 2, "names 'enter', but the model has no such part"),
    ],
)
def test_another_is_refused_with_the_reason(model: nn.Module, ranks: int, said: str) -> None:
    with pytest.raises(BadConfiguration, match=re.escape(said)):
        refuse_uncuttable(model, ranks)

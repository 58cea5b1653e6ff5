"""The default network for tables: a mean of small networks over numbers in pieces, missing values and categories.

    from ml_assets.model.tabular import tabular

    def build(inputs):
        return tabular(inputs)

Parts, and where they are from. A number becomes up to 16 pieces between quantiles of the training rows, so that its
effect may bend anywhere (piecewise-linear encoding: Gorishniy et al. 2022, arXiv:2203.05556). Members are small
networks in one pass, each with a loss of its own, and their mean is the answer (TabM: Gorishniy et al. 2025,
arXiv:2410.24210; here they share embeddings alone). Beside each member a linear part reads the same columns, so what
adds up is learned first. It fits every objective but texts: the outputs begin at the level and with the spread of the
label. Not here: standardising, quantiles and categories' ids (`data.features.encoding`), and losses of members
(`training.step.objectives`).
"""

# pyright: reportUnknownMemberType=false
# (the annotations of torch are partial)

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from ml_assets.data.snapshots.split_reader import InputSpec
from resources.job.errors import BadConfiguration
from resources.words import did_you_mean

LARGEST = 4.0
"""Standard deviations from the mean at which a number is cut off. Its pieces end with the training rows."""

PAST_RATE = 5.0
"""Factor of the weights of earlier labels, which are few and learn too late at the rate of the other weights."""
NEVER = -1e9
"""Logit of an earlier label that is missing."""


class Tabular(nn.Module):
    """Network for tables. In training it answers with the outputs of its members, otherwise with their mean."""

    category_plan = ("embeddings.*",)
    reads_missing = True
    error_power = 2
    """Power of an error in the loss. `build_model` sets that of the objective."""

    columns: torch.Tensor
    begins: torch.Tensor
    slopes: torch.Tensor
    past_scales: torch.Tensor
    past_begins: torch.Tensor

    def __init__(
        self,
        inputs: InputSpec,
        members: int,
        width: int,
        layers: int,
        embedding: int,
        dropout: float,
        past: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.members, self.outputs, self.dropout = members, inputs.outputs, dropout
        self.level, self.spread = inputs.level, inputs.spread
        self.past = past
        self.in_unit_of_label = bool(past)
        self.past_weights = nn.Parameter(torch.zeros(len(past))) if past else None
        if past:
            scales = [inputs.scales[at] / self.spread for at in past]
            self.register_buffer("past_scales", torch.tensor(scales))
            begins = [(inputs.means[at] - self.level) / self.spread for at in past]
            self.register_buffer("past_begins", torch.tensor(begins))
        pieces = [
            (number, begin, 1 / (end - begin))
            for number, ends in enumerate(inputs.quantiles)
            for begin, end in pairwise(ends)
        ]
        self.register_buffer("columns", torch.tensor([number for number, _, _ in pieces], dtype=torch.long))
        self.register_buffer("begins", torch.tensor([begin for _, begin, _ in pieces]))
        self.register_buffer("slopes", torch.tensor([slope for _, _, slope in pieces]))

        self._direct = members * inputs.outputs
        widths = [min(embedding, (size + 1) // 2) for size in inputs.cardinalities]
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, self._direct + columns)
            for size, columns in zip(inputs.cardinalities, widths, strict=True)
        )
        """First the effect of the category on each output, then what the members read."""
        for table in self.embeddings:
            assert isinstance(table, nn.Embedding)
            nn.init.zeros_(table.weight[:, : self._direct])
            nn.init.normal_(table.weight[:, self._direct :], std=0.3)
        numbers = len(inputs.numeric)
        read = len(pieces) + 2 * numbers + sum(widths)
        self.direct = nn.Linear(read, self._direct, bias=False)
        nn.init.zeros_(self.direct.weight)
        self.first = nn.Linear(read, members * width)
        nn.init.normal_(self.first.weight, std=1 / math.sqrt(max(read, 1)))
        nn.init.zeros_(self.first.bias)
        # Weights of a flag that no training row sets are not trained, so they begin without effect.
        with torch.no_grad():
            self.first.weight[:, len(pieces) + numbers : len(pieces) + 2 * numbers] = 0
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for _ in range(layers - 1):
            self.weights.append(torch.randn(members, width, width) * math.sqrt(2 / width))
            self.biases.append(torch.zeros(members, 1, width))
        # With earlier labels it begins at their mean: labels may differ by more than a guess of them is wrong.
        last = 0.0 if past else 0.5 / math.sqrt(width)
        self.weights.append(torch.randn(members, width, inputs.outputs) * last)
        self.biases.append(torch.zeros(members, 1, inputs.outputs))
        matrices = [self.direct.weight, self.first.weight, *self.weights]
        self.flops_per_row = 6 * sum(matrix.numel() for matrix in matrices)  # for the figure mfu

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Answer for `numeric [B, F]` float32, NaN where missing, and `category [B, C]` int64: `[B]`, or scores
        `[B, classes]`; in training `[members, B]` or `[members, B, classes]`."""
        missing = torch.isnan(numeric)
        known = torch.where(missing, 0.0, numeric)
        pieces = ((known[:, self.columns] - self.begins) * self.slopes).clamp(0, 1)
        looked_up = [table(category[:, i]) for i, table in enumerate(self.embeddings)]
        embedded = [found[:, self._direct :] for found in looked_up]
        read = torch.cat([pieces, known.clamp(-LARGEST, LARGEST), missing.to(pieces.dtype), *embedded], dim=1)
        read = self._dropped(read)
        effects = self.direct(read)
        for found in looked_up:
            effects = effects + found[:, : self._direct]
        hidden = self._by_member(self.first(read))
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = torch.baddbmm(bias, self._dropped(functional.relu(hidden)), weight)
        answer = hidden + self._by_member(effects)
        if self.past_weights is not None:
            answer = answer + self._earlier_label(known, missing, self.past_weights)
        answer = answer * self.spread + self.level
        if answer.requires_grad:
            # A squared error's gradient grows with the unit of the label, twice, and the loop would clip each step.
            # That of a quantile grows once: divided twice, it vanished beside the optimizer's epsilon at 1e8.
            answer.register_hook(self._without_unit)
        answer = answer.squeeze(2) if self.outputs == 1 else answer
        return answer if self.training else answer.mean(dim=0)

    def _earlier_label(
        self, known: torch.Tensor, missing: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean of the earlier labels that are known, in the unit of the answer, `[B, 1]`; 0, the level of
        the label, without any."""
        past = list(self.past)
        labels = known[:, past] * self.past_scales + self.past_begins
        unknown = missing[:, past]
        shares = (weights * PAST_RATE).expand_as(labels).masked_fill(unknown, NEVER).softmax(dim=1)
        return (labels * shares).masked_fill(unknown, 0.0).sum(dim=1, keepdim=True)

    def _without_unit(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.spread**self.error_power

    def _by_member(self, values: torch.Tensor) -> torch.Tensor:
        """Turn `[B, members · n]` into `[members, B, n]`."""
        return values.unflatten(1, (self.members, -1)).transpose(0, 1)

    def _dropped(self, values: torch.Tensor) -> torch.Tensor:
        return functional.dropout(values, self.dropout, self.training)


def tabular(
    inputs: InputSpec,
    *,
    members: int = 8,
    width: int = 64,
    layers: int = 3,
    embedding: int = 8,
    dropout: float = 0.1,
    past: str | Sequence[str] = (),
) -> Tabular:
    """Build the default network for the columns of a training set (`inputs`).

    `members` networks of `layers` layers with `width` units each; `embedding` is the largest width of a category, and
    `dropout` the share of columns and units that each pass of the training leaves out. `past` names numeric columns
    that hold an earlier value of the label, in its unit, such as the last and that of the season: the network then
    answers with the difference from their mean, whose weights it learns, and follows a label that rises or falls beyond
    the training rows. It is for regression and quantiles. Raises `BadConfiguration` for rows with blobs or texts, for a
    training set of a release before 0.2, for a `past` that is no numeric column, or with classes, and for settings
    outside their range.
    """
    for name, value in {"members": members, "width": width, "layers": layers, "embedding": embedding}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadConfiguration(f"tabular needs a whole number from 1 as {name}, not {value!r}")
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise BadConfiguration(f"tabular needs a share from 0 to below 1 as dropout, not {dropout!r}")
    if inputs.blob or inputs.vocabulary:
        raise BadConfiguration(
            "tabular reads numbers and categories, and these rows have blobs: write a network of your own"
        )
    if not len(inputs.quantiles) == len(inputs.scales) == len(inputs.numeric):
        raise BadConfiguration(
            "tabular needs quantiles and scales of numbers, which the fitted state of an earlier release lacks: train "
            "without init_from, so that the training set is made anew"
        )
    earlier = (past,) if isinstance(past, str) else past
    if not isinstance(earlier, Sequence) or not all(isinstance(name, str) for name in earlier):
        raise BadConfiguration(f"tabular needs a list of numeric columns as past, not {past!r}: [] for none")
    for name in earlier:
        if name not in inputs.numeric:
            raise BadConfiguration(
                f"tabular reads no number called '{name}' as past{did_you_mean(name, inputs.numeric)}"
            )
    if earlier and inputs.classes:
        raise BadConfiguration(
            "tabular adds `past` to a label that is a number, not to classes: leave it out"
        )
    places = tuple(inputs.numeric.index(name) for name in earlier)
    return Tabular(inputs, members, width, layers, embedding, dropout, places)

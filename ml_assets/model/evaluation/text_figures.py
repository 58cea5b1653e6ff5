"""Losses of a holdout of texts by position in the text and by frequency of the token, for two pictures of a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ml_assets.foundation.objective_facts import PADDING
from ml_assets.model.evaluation.evaluation_document import Role, TextFigures, TokenBin
from ml_assets.model.evaluation.metrics import NATS_OF_BIT
from ml_assets.model.evaluation.ngrams import Tokens, Values


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSums:
    """Sums over the predicted tokens of some texts."""

    by_position: Values
    """`[2, T - 1]`: nats, and number of tokens, of each position."""
    by_token: Values
    """`[2, vocabulary]`: the same of each token id."""

    @classmethod
    def of(cls, nats: Values, texts: Tokens, vocabulary: int) -> Self:
        """Sum `nats` `[N, T - 1]` of the predicted tokens of `texts` `[N, T]`."""
        targets = texts[:, 1:]
        counted = targets != PADDING
        ids = targets[counted]
        return cls(
            by_position=np.stack([np.where(counted, nats, 0.0).sum(axis=0), counted.sum(axis=0)]),
            by_token=np.stack(
                [_sums(ids, nats[counted], vocabulary), _sums(ids, np.ones(len(ids)), vocabulary)]
            ),
        )

    def __add__(self, other: Self) -> Self:
        return type(self)(
            by_position=self.by_position + other.by_position, by_token=self.by_token + other.by_token
        )


def text_figures(sums: Mapping[Role, TokenSums], trained_on: Values) -> TextFigures:
    """Return bits per token of each model, by position, in powers of two, and by frequency, in powers of ten.

    `trained_on` `[vocabulary]` counts how often each token id occurs in the training texts.
    """
    first = next(iter(sums.values()))
    before: Values = np.arange(1, first.by_position.shape[1] + 1, dtype=np.float64)
    doubled = np.floor(np.log2(before)).astype(np.intp)
    digits = np.where(trained_on > 0, 1 + np.floor(np.log10(np.maximum(trained_on, 1))), 0).astype(np.intp)
    return TextFigures(
        tokens=int(first.by_token[1].sum()),
        positions=_bins(
            {role: one.by_position for role, one in sums.items()},
            doubled,
            [2**number for number in range(int(doubled.max()) + 1)],
        ),
        frequencies=_bins(
            {role: one.by_token for role, one in sums.items()},
            digits,
            [0, *(10**number for number in range(int(digits.max())))],
        ),
    )


def _bins(
    sums: Mapping[Role, Values], group: npt.NDArray[np.intp], least: Sequence[int]
) -> tuple[TokenBin, ...]:
    """Return the groups that have tokens. `sums` are `[2, M]`, `group` the number of the group of each of the M."""
    tokens = _sums(group, next(iter(sums.values()))[1], len(least))
    nats: dict[Role, Values] = {role: _sums(group, of[0], len(least)) for role, of in sums.items()}
    return tuple(
        TokenBin(
            least=start,
            tokens=int(count),
            bits={role: round(float(of[number] / count) / NATS_OF_BIT, 6) for role, of in nats.items()},
        )
        for number, (start, count) in enumerate(zip(least, tokens, strict=True))
        if count
    )


def _sums(numbers: npt.NDArray[np.intp] | Tokens, values: Values, count: int) -> Values:
    return np.bincount(numbers, weights=values, minlength=count).astype(np.float64)

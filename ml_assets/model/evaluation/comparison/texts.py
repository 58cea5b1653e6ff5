"""Models of texts that count tokens, and losses of a holdout of texts token by token.

The models predict the next token by counting: single tokens, the naive baseline; trigrams, the reference. Both need no
settings. Texts are `[N, T]` token ids from 0, with `PADDING` behind the last token of a short text. As for every model
of texts, the first token of a row is given, and all others are predicted from those before it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ml_assets.foundation.objective_facts import PADDING
from ml_assets.model.evaluation.evaluation_document import Role, TextFigures, TokenBin
from ml_assets.model.evaluation.metrics.metrics import NATS_OF_BIT
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError, sums_of

Tokens = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
UNIGRAM, TRIGRAM = 1, 3
"""Tokens that are counted together: the predicted one and those before it."""
_LARGEST_CODE = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class _Level:
    """Counts of all tokens after each context of a fixed length; a context is the number that its tokens spell."""

    contexts: Tokens
    """Contexts of the training texts, rising, `[C]`."""
    totals: Values
    """Tokens after each context, `[C]`."""
    kinds: Values
    """Different tokens after each context, `[C]`."""
    frequent: Tokens
    """Most frequent token after each context, `[C]`; among equals the smallest id."""
    pairs: Tokens
    """Context × vocabulary + token, for each pair of the training texts, rising, `[P]`."""
    counts: Values
    """Times that each pair occurs, `[P]`."""

    @classmethod
    def of(cls, pairs: Tokens, counts: Values, vocabulary: int) -> Self:
        owner = pairs // vocabulary
        first = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])[: len(owner)])
        by_count = np.lexsort((pairs, -counts, owner))
        return cls(
            contexts=owner[first],
            totals=np.add.reduceat(counts, first),
            kinds=np.diff(np.append(first, len(owner))).astype(np.float64),
            frequent=pairs[by_count[first]] % vocabulary,
            pairs=pairs,
            counts=counts,
        )


@dataclass(frozen=True, kw_only=True)
class NGrams:
    """Counts of the training texts, for contexts of 0 to `order - 1` tokens."""

    vocabulary: int
    levels: tuple[_Level, ...]

    @classmethod
    def fit(cls, texts: Iterable[Tokens], vocabulary: int, order: int) -> Self:
        """Count all predicted tokens of training texts. Raises `EvaluationInputError` if the codes of contexts do not
        fit into 63 bits, or there is no token to count."""
        if vocabulary**order > _LARGEST_CODE:
            raise EvaluationInputError(
                f"{order} tokens of a vocabulary of {vocabulary:,} cannot be counted: use at most "
                f"{math.floor(_LARGEST_CODE ** (1 / order)):,} token ids"
            )
        found: list[tuple[Tokens, Values]] = [(np.empty(0, np.int64), np.empty(0))] * order
        for part in texts:
            for length in range(order):
                context, token = _pairs(part, length, vocabulary)
                found[length] = _merged(*found[length], context * vocabulary + token)
        if not len(found[0][0]):
            raise EvaluationInputError("no training text has a token to predict: choose a window with texts")
        return cls(
            vocabulary=vocabulary,
            levels=tuple(_Level.of(pairs, counts, vocabulary) for pairs, counts in found if len(pairs)),
        )

    def shortened(self, order: int) -> Self:
        """Return the same counts with shorter contexts."""
        return type(self)(vocabulary=self.vocabulary, levels=self.levels[:order])

    def nats(self, texts: Tokens) -> Values:
        """Return minus the logarithm of each predicted token's probability, `[N, T - 1]`; 0 for `PADDING`.

        A token after a context has the probability (its count + kinds × probability after the shorter context) /
        (all counts + kinds), where kinds is the number of different tokens after the context (Witten and Bell 1991).
        Without any context it is (its count + 1) / (all counts + vocabulary).
        """
        targets = texts[:, 1:]
        chance = np.zeros(targets.shape)
        for length, level in enumerate(self.levels):
            context, token = _pairs(texts, length, self.vocabulary)
            place, known = _places(level.contexts, context)
            count = np.zeros(len(token))
            at, seen = _places(level.pairs, context * self.vocabulary + token)
            count[seen] = level.counts[at[seen]]
            below = chance[_predicted(texts, length)]
            kinds = level.kinds[place]
            if length == 0:
                below, kinds = (
                    np.full(len(token), 1 / self.vocabulary),
                    np.full(len(token), float(self.vocabulary)),
                )
            mixed = (count + kinds * below) / (level.totals[place] + kinds)
            chance[_predicted(texts, length)] = np.where(known, mixed, below)
        return np.where(targets != PADDING, -np.log(np.where(targets != PADDING, chance, 1.0)), 0.0)

    def hits(self, texts: Tokens) -> Values:
        """Return 1 where the most frequent token after the longest known context follows, else 0, `[N, T - 1]`."""
        guess = np.full(texts[:, 1:].shape, PADDING - 1)
        for length, level in enumerate(self.levels):
            context, _ = _pairs(texts, length, self.vocabulary)
            place, known = _places(level.contexts, context)
            where = _predicted(texts, length)
            guess[where] = np.where(known, level.frequent[place], guess[where])
        return (guess == texts[:, 1:]).astype(np.float64)

    def counts_of_tokens(self) -> Values:
        """Return how often each token id is predicted in the training texts, `[vocabulary]`."""
        counts = np.zeros(self.vocabulary)
        counts[self.levels[0].pairs] = self.levels[0].counts
        return counts

    @property
    def name(self) -> str:
        """Name in a report."""
        if len(self.levels) == UNIGRAM:
            return "naive baseline (frequency of each token in the training texts)"
        return f"count model of {len(self.levels)} tokens in a row (Witten–Bell)"


def figures_of_rows(nats: Values, hits: Values, texts: Tokens) -> Values:
    """Return `[N, 2]`, as a bundle answers: mean nats per predicted token, and the share of them predicted right."""
    predicted = np.maximum((texts[:, 1:] != PADDING).sum(axis=1), 1)
    return np.stack([nats.sum(axis=1) / predicted, hits.sum(axis=1) / predicted], axis=1)


def _predicted(texts: Tokens, length: int) -> npt.NDArray[np.bool]:
    """Return True for predicted tokens with at least `length` tokens before them, `[N, T - 1]`."""
    where = texts[:, 1:] != PADDING
    where[:, : max(length - 1, 0)] = False
    return where


def _pairs(texts: Tokens, length: int, vocabulary: int) -> tuple[Tokens, Tokens]:
    """Return the context of `length` tokens and the token, of each predicted token with such a context, `[M]` each."""
    where = _predicted(texts, length)
    context = np.zeros(where.shape, dtype=np.int64)
    width = where.shape[1]
    for back in range(length, 0, -1):
        shifted = np.zeros_like(context)
        shifted[:, back - 1 :] = texts[:, : width - back + 1]
        context = context * vocabulary + shifted
    return context[where], texts[:, 1:][where]


def _merged(pairs: Tokens, counts: Values, more: Tokens) -> tuple[Tokens, Values]:
    new, times = np.unique(more, return_counts=True)
    every, place = np.unique(np.concatenate([pairs, new]), return_inverse=True)
    sums = np.bincount(place, weights=np.concatenate([counts, times]), minlength=len(every))
    return every, sums.astype(np.float64)


def _places(rising: Tokens, wanted: Tokens) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool]]:
    """Return the place of each of `wanted` in `rising`, and True where it is there."""
    place = np.minimum(np.searchsorted(rising, wanted), len(rising) - 1)
    return place, rising[place] == wanted


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
                [sums_of(nats[counted], ids, vocabulary), sums_of(np.ones(len(ids)), ids, vocabulary)]
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
    tokens = sums_of(next(iter(sums.values()))[1], group, len(least))
    nats: dict[Role, Values] = {role: sums_of(of[0], group, len(least)) for role, of in sums.items()}
    return tuple(
        TokenBin(
            least=start,
            tokens=int(count),
            bits={role: round(float(of[number] / count) / NATS_OF_BIT, 6) for role, of in nats.items()},
        )
        for number, (start, count) in enumerate(zip(least, tokens, strict=True))
        if count
    )

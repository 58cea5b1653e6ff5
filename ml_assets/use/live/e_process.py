"""Evidence that a canary is worse than the champion, valid at every moment at which somebody looks.

An e-process begins at 1 and is a bet against the hypothesis "the canary's mean is at most the champion's mean plus a
margin". If the hypothesis holds, the probability that it ever reaches 1 / alpha is at most alpha (Ville, 1939), however
often and whenever somebody looks. `advance` adds blocks to what an earlier look counted, so no look changes the order
of earlier rows. Here: bounded outcomes. Not here: metrics and decisions (`comparison`).

Rows are taken in blocks, in the order of their arrival. In a block of n champion rows y and k canary rows x, the bet is

    product of (1 - L/n (y - c))  times  product of (1 + L/k (x - c - margin)),   L >= 0.

Its expectation is at most exp(L (mean x - mean y - margin)), because 1 + z <= exp(z): at most 1 under the hypothesis,
for all distributions on [0, 1], and for means that change from block to block. `c` and `L` may depend on earlier blocks
and on the numbers of rows, never on the block's outcomes. `c` is the point of the hypothesis from which the rows are
hardest to tell. For proportions and margin 0 the bet is the likelihood ratio
that grows fastest (Turner, Ly and Gruenwald, arXiv 2106.02693); for other outcomes it is a bet on a bounded mean
(Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024). The
e-process is a mixture over several regressions, because the real one is not known, and over two variances of the
canary's outcomes: as small as the champion's, and as large as any on [0, 1]. The canary's own may not be used, because
a worse row of the canary would then make later bets more careful, and help it.

With weights, the terms in parentheses are multiplied by v, the weight divided by the mean weight of earlier blocks, at
most `HEAVIEST`. Weights belong to rows and not to versions, so their mean is the same on both sides, and the
hypothesis is about the weighted means.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

Floats: TypeAlias = npt.NDArray[np.float64]
Sides: TypeAlias = npt.NDArray[np.bool_]

BLOCK = 8
"""Fewest rows of the canary in a block. Larger blocks waste fewer rows, smaller blocks find a broken canary sooner."""
BLOCK_ROWS = 4
"""Fewest rows of both versions in a block, in multiples of `BLOCK`. A block of 8 rows of each wastes 6 %."""
REGRESSIONS = (1.0, 2.0, 4.0)
"""Regressions to bet on, beyond the margin, in units of the smallest that matters."""
WEIGHTS = (0.9, 0.07, 0.03)
"""Share of the stake on each. Most is on the smallest, which takes the most rows; its bet also grows if the regression
is larger."""
BOLDEST = 0.9
"""Largest share of the stake that one row may lose."""
HEAVIEST = 10.0
"""Largest weight of a row, in means."""
_STEPS = 4
"""Steps to the centre of a bet. The third changes the growth by less than 1 %."""


class Wealth(BaseModel):
    """State of an e-process after full blocks: all that later blocks need of earlier rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    champions: float = 0.0
    """Champion's rows, by weight; also in `total` and `squares`, the sums of its outcomes and of their squares."""
    total: float = 0.0
    squares: float = 0.0
    rows: int = 0
    """Rows of both versions, with the sums of their weights and of the squares."""
    weight: float = 0.0
    weight_squares: float = 0.0
    grown: tuple[float, ...] = (0.0,) * (2 * len(REGRESSIONS))
    """Logarithm of each bet's wealth."""


@dataclass(frozen=True)
class Bet:
    """Bet on the blocks of a stream, arrays `[blocks, 2 * regressions]`: first those for a canary that varies as little
    as the champion, then those for one that varies as much as it can."""

    centre: Floats
    """`c`: champion's mean under the hypothesis that is nearest to the regression."""
    champion: Floats
    """`L / n`: share of the stake lost for each unit of a champion's outcome above `c`."""
    canary: Floats
    """`L / k`: share of the stake won for each unit of a canary's outcome above `c + margin`."""


def log_e_process(
    outcomes: Floats,
    is_canary: Sides,
    *,
    margin: float,
    smallest: float,
    weights: Floats | None = None,
    block: int = BLOCK,
) -> Floats:
    """Return the logarithm of the e-process of a whole stream at the end of each block, `[blocks]`. See `advance`."""
    ends = block_ends(is_canary, block)
    return advance(Wealth(), outcomes, is_canary, ends, margin=margin, smallest=smallest, weights=weights)[1]


def advance(
    before: Wealth,
    outcomes: Floats,
    is_canary: Sides,
    ends: npt.NDArray[np.intp],
    *,
    margin: float,
    smallest: float,
    weights: Floats | None = None,
) -> tuple[Wealth, Floats]:
    """Return the state after further blocks, and the logarithm of the e-process at the end of each, `[blocks]`.

    `outcomes` are `[rows]` in [0, 1], larger is worse, in the order in which they count; `ends` are the rows that end
    the blocks (`block_ends`), and rows after the last do not count yet. `smallest` is the smallest regression beyond
    `margin` that matters, in their unit; the margin may be negative. `weights` are `[rows]`, 0 or more; None: each row
    counts once. Raises `ValueError` for outcomes outside [0, 1].
    """
    if outcomes.size and not (outcomes.min() >= 0 and outcomes.max() <= 1):  # NaN fails, too
        raise ValueError("an e-process needs outcomes from 0 to 1")
    if not ends.size:
        return before, np.empty(0)
    seen = slice(0, ends[-1] + 1)
    outcomes, is_canary = outcomes[seen], is_canary[seen]
    block_of = np.searchsorted(ends, np.arange(len(outcomes)))

    def sums(values: Floats) -> Floats:
        return np.bincount(block_of, values, minlength=len(ends)).astype(float)

    def with_earlier(first: float, values: Floats) -> Floats:
        """Return the sums before each block and after the last, `[blocks + 1]`."""
        return first + np.append(0.0, sums(values).cumsum())

    rows = with_earlier(before.rows, np.ones(len(outcomes)))
    if weights is None:
        heaviest, varied = 1.0, np.ones(len(ends))
        relative = np.ones(len(outcomes))
        weight, weight_squares = rows, rows
    else:
        heaviest = HEAVIEST
        weight = with_earlier(before.weight, weights[seen])
        weight_squares = with_earlier(before.weight_squares, weights[seen] ** 2)
        mean_weight = weight[:-1] / np.maximum(rows[:-1], 1)
        if before.rows == 0:
            mean_weight[0] = weight[1] / rows[1]  # nothing is bet on the first block
        mean_weight = np.where(mean_weight > 0, mean_weight, 1.0)
        varied = np.clip(weight_squares[:-1] / np.maximum(rows[:-1], 1) / mean_weight**2, 1.0, HEAVIEST)
        relative = np.minimum(weights[seen] / mean_weight[block_of], HEAVIEST)
    of_champion = np.where(is_canary, 0.0, relative)
    champions = with_earlier(before.champions, of_champion)
    total = with_earlier(before.total, of_champion * outcomes)
    squares = with_earlier(before.squares, of_champion * outcomes**2)
    mean, spread = _mean_and_spread(champions[:-1], total[:-1], squares[:-1])
    bet = place(
        mean,
        spread,
        sums((~is_canary).astype(float)),
        sums(is_canary.astype(float)),
        margin=margin,
        smallest=smallest,
        varied=varied,
        heaviest=heaviest,
    )
    if before.rows == 0:
        bet.champion[0] = bet.canary[0] = 0.0  # nothing is known yet
    factor = relative[:, None] * np.where(
        is_canary[:, None],
        bet.canary[block_of] * (outcomes[:, None] - bet.centre[block_of] - margin),
        -bet.champion[block_of] * (outcomes[:, None] - bet.centre[block_of]),
    )
    begins = np.append(0, ends[:-1] + 1)
    grown = before.grown + np.add.reduceat(np.log1p(factor), begins).cumsum(axis=0)
    after = Wealth(
        champions=champions[-1],
        total=total[-1],
        squares=squares[-1],
        rows=int(rows[-1]),
        weight=weight[-1],
        weight_squares=weight_squares[-1],
        grown=tuple(grown[-1].tolist()),
    )
    return after, np.logaddexp.reduce(grown + np.log(np.tile(WEIGHTS, 2) / 2), axis=1)


def block_ends(is_canary: Sides, block: int = BLOCK) -> npt.NDArray[np.intp]:
    """Return the row that ends each full block, `[blocks]`.

    A block has at least `block` rows of the canary and `BLOCK_ROWS` times as many of both versions.
    """
    canaries = np.flatnonzero(is_canary)
    counted = np.cumsum(is_canary)
    ends: list[int] = []
    begin, before = 0, 0
    while before + block <= len(canaries):
        end = max(int(canaries[before + block - 1]), begin + BLOCK_ROWS * block - 1)
        if end >= len(is_canary):
            break
        ends.append(end)
        begin, before = end + 1, int(counted[end])
    return np.array(ends, dtype=np.intp)


def place(
    mean: Floats,
    spread: Floats,
    champions: Floats,
    canaries: Floats,
    *,
    margin: float,
    smallest: float,
    varied: Floats | float = 1.0,
    heaviest: float = 1.0,
) -> Bet:
    """Return the bets for blocks with these numbers of rows, all arrays `[blocks]`.

    `mean` is the champion's mean as known before each block. `spread` is its variance divided by `mean (1 - mean)`: 1
    for outcomes that are 0 or 1, less for others. For 1, both halves of the bets are equal. `varied` is the mean square
    of the rows' weights, and `heaviest` the largest of them, in means.
    """
    n, k = np.maximum(champions, 1)[:, None], np.maximum(canaries, 1)[:, None]
    beyond = smallest * np.tile(REGRESSIONS, 2)
    of_canary = np.where(np.arange(beyond.size) < len(REGRESSIONS), spread[:, None], 1.0)
    lowest, highest = max(0.0, -margin) + 1e-6, 1.0 - max(0.0, margin) - 1e-6
    centre = np.clip(mean[:, None] + beyond * k / (n + k), lowest, highest)
    for _ in range(_STEPS):
        variances = _variances(centre, margin, spread[:, None], of_canary, n, k)
        centre = np.clip(mean[:, None] + beyond * variances[0] / sum(variances), lowest, highest)
    variance = sum(_variances(centre, margin, spread[:, None], of_canary, n, k))
    boldest = BOLDEST / heaviest * np.minimum(k / (centre + margin), n / (1 - centre))
    wanted = beyond / (variance * np.reshape(varied, (-1, 1)))
    bold = np.where((champions > 0)[:, None], np.minimum(wanted, boldest), 0.0)
    return Bet(centre, bold / n, bold / k)


def _variances(
    centre: Floats, margin: float, spread: Floats, of_canary: Floats, n: Floats, k: Floats
) -> tuple[Floats, Floats]:
    """Return the variances of the block's means, of champion and canary."""
    other = centre + margin
    return spread * centre * (1 - centre) / n, of_canary * other * (1 - other) / k


def _mean_and_spread(rows: Floats, total: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Return mean and spread of the champion's outcomes in earlier blocks, as if one more row had been seen."""
    mean = (total + 0.5) / (rows + 1)
    variance = np.maximum((squares + 0.5) / (rows + 1) - mean**2, 0.0)
    return mean, np.clip(variance / (mean * (1 - mean)), 1e-3, 1.0)

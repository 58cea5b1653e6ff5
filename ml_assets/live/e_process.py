"""Evidence that a canary is worse than the champion, valid at every moment at which somebody looks.

An e-process begins at 1 and is a bet against the hypothesis "the canary's mean is at most the champion's mean plus a
margin". If the hypothesis holds, the probability that it ever reaches 1 / alpha is at most alpha (Ville, 1939), however
often and whenever somebody looks, if each look has the rows of the one before in the same order, and then more. Here:
bounded outcomes, numpy alone. Not here: metrics and decisions (`comparison`).

Rows are taken in blocks, in the order of their arrival. In a block of n champion rows y and k canary rows x, the bet is

    product of (1 - L/n (y - c))  times  product of (1 + L/k (x - c - margin)),   L >= 0.

Its expectation is at most exp(L (mean x - mean y - margin)), because 1 + z <= exp(z): at most 1 under the hypothesis,
for all distributions on [0, 1], and for means that change from block to block. `c` and `L` may depend on earlier blocks
and on the numbers of rows, never on the block's outcomes. For proportions and margin 0 the bet is the likelihood ratio
that grows fastest (Turner, Ly and Gruenwald, arXiv 2106.02693); for other outcomes it is a bet on a bounded mean
(Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024). The
e-process is a mixture over several regressions, because the real one is not known, and over two variances of the
canary's outcomes: as small as the champion's, and as large as any on [0, 1]. The canary's own may not be used, because
a worse row of the canary would then make later bets more careful, and help it.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

BLOCK = 8
"""Canary rows of a block. Larger blocks waste fewer rows, smaller blocks find a broken canary sooner."""
REGRESSIONS = (1.0, 2.0, 4.0)
"""Regressions to bet on, beyond the margin, in units of the smallest that matters."""
WEIGHTS = (0.6, 0.25, 0.15)
"""Share of the stake on each. Most is on the smallest, which takes the most rows; its bet also grows if the regression
is larger."""
BOLDEST = 0.9
"""Largest share of the stake that one row may lose."""


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
    outcomes: Floats, is_canary: npt.NDArray[np.bool_], *, margin: float, smallest: float, block: int = BLOCK
) -> Floats:
    """Return the logarithm of the e-process at the end of each block, `[blocks]`.

    `outcomes` are `[rows]` in [0, 1], larger is worse, in order of arrival; `smallest` is the smallest regression
    beyond `margin` that matters, in their unit. Rows after the last full block do not count yet. Raises `ValueError`
    for outcomes outside [0, 1].
    """
    if outcomes.size and not (outcomes.min() >= 0 and outcomes.max() <= 1):  # NaN fails, too
        raise ValueError("an e-process needs outcomes from 0 to 1")
    ends = block_ends(is_canary, block)
    if not ends.size:
        return np.empty(0)
    seen = slice(0, ends[-1] + 1)
    outcomes, is_canary = outcomes[seen], is_canary[seen]
    block_of = np.searchsorted(ends, np.arange(len(outcomes)))
    champions = np.bincount(block_of[~is_canary], minlength=len(ends)).astype(float)
    mean, spread = _before_each_block(outcomes[~is_canary], block_of[~is_canary], len(ends))
    bet = place(mean, spread, champions, float(block), margin=margin, smallest=smallest)
    bet.champion[0] = bet.canary[0] = 0.0  # nothing is known yet
    factor = np.where(
        is_canary[:, None],
        bet.canary[block_of] * (outcomes[:, None] - bet.centre[block_of] - margin),
        -bet.champion[block_of] * (outcomes[:, None] - bet.centre[block_of]),
    )
    grown = np.add.reduceat(np.log1p(factor), np.append(0, ends[:-1] + 1)).cumsum(axis=0)
    return np.logaddexp.reduce(grown + np.log(np.tile(WEIGHTS, 2) / 2), axis=1)


def block_ends(is_canary: npt.NDArray[np.bool_], block: int = BLOCK) -> npt.NDArray[np.intp]:
    """Return the row that ends each full block, `[blocks]`: every `block`-th row of the canary."""
    return np.flatnonzero(is_canary)[block - 1 :: block]


def place(
    mean: Floats, spread: Floats, champions: Floats, canaries: float, *, margin: float, smallest: float
) -> Bet:
    """Return the bets for blocks with these numbers of rows.

    `mean` is the champion's mean as known before each block. `spread` is its variance divided by `mean (1 - mean)`: 1
    for outcomes that are 0 or 1, less for others. For 1, both halves of the bets are equal.
    """
    n, k = np.maximum(champions, 1)[:, None], canaries
    beyond = smallest * np.tile(REGRESSIONS, 2)
    of_canary = np.where(np.arange(beyond.size) < len(REGRESSIONS), spread[:, None], 1.0)
    centre = np.clip(mean[:, None] + beyond * k / (n + k), 1e-6, 1 - margin - 1e-6)
    highest = centre + margin
    variance = spread[:, None] * centre * (1 - centre) / n + of_canary * highest * (1 - highest) / k
    boldest = BOLDEST * np.minimum(k / highest, n / (1 - centre))
    bold = np.where(champions[:, None] > 0, np.minimum(beyond / variance, boldest), 0.0)
    return Bet(centre, bold / n, bold / k)


def _before_each_block(
    outcomes: Floats, block_of: npt.NDArray[np.intp], blocks: int
) -> tuple[Floats, Floats]:
    """Return mean and spread of the outcomes in earlier blocks, `[blocks]`, as if one more row had been seen."""
    before = [
        np.append(0.0, np.bincount(block_of, weights, minlength=blocks).cumsum()[:-1])
        for weights in (np.ones(len(outcomes)), outcomes, outcomes**2)
    ]
    rows = before[0] + 1
    mean = (before[1] + 0.5) / rows
    binary = mean * (1 - mean)
    variance = np.maximum((before[2] + 0.5) / rows - mean**2, 0.0)
    return mean, np.clip(variance / binary, 1e-3, 1.0)

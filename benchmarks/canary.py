"""Canary watches: false stops under continuous looking, and rows until a regression is found.

`python -m benchmarks.canary [--streams 10000]` prints a table. Errors are drawn independently per request. A
false stop is an equal canary whose e-process ever reached 1 / alpha, with a look after every block. The fixed
test is the one-sided z-test of two shares with unpooled variances, planned for the smallest regression that matters
(twice the margin) with alpha 0.05 and power 0.9, because the size of a regression is not known beforehand.
"""

import argparse
import time
from statistics import NormalDist

import numpy as np

from ml_assets.live.e_process import BLOCK, log_e_process

ALPHA, POWER = 0.05, 0.9
TRAFFIC = ((0.1, 0.02, 0.02), (0.1, 0.1, 0.05), (0.5, 0.02, 0.02), (0.5, 0.1, 0.05))
"""Share of the canary, error rate of the champion, margin."""
TIMES = (2, 3, 4, 6)
"""Regressions, in margins."""


def rows_of_a_fixed_test(share: float, champion: float, canary: float, margin: float) -> float:
    """Return the rows of both arms that a z-test needs."""
    z = NormalDist().inv_cdf(1 - ALPHA) + NormalDist().inv_cdf(POWER)
    variance = champion * (1 - champion) / (1 - share) + canary * (1 - canary) / share
    return z**2 * variance / (canary - champion - margin) ** 2


def stops(streams: int, rows: int, share: float, champion: float, canary: float, margin: float) -> np.ndarray:
    """Return the row at which each stream stops, `[streams]`; infinity if it does not."""
    random = np.random.default_rng(20261123)
    found = np.full(streams, np.inf)
    for stream in range(streams):
        is_canary = random.random(rows) < share
        errors = (random.random(rows) < np.where(is_canary, canary, champion)).astype(float)
        log_e = log_e_process(errors, is_canary, margin=margin, smallest=margin)
        stop = np.flatnonzero(log_e >= -np.log(ALPHA))
        if stop.size:
            found[stream] = np.flatnonzero(is_canary)[BLOCK - 1 :: BLOCK][stop[0]] + 1
    return found


def found_by_mae(streams: int, rows: int, far: float) -> np.ndarray:
    """Return the row at which each stream of absolute errors stops, `[streams]`; infinity if it does not.

    The champion is always wrong by 0.5. The canary is right on half of its rows and wrong by `far` on the others.
    """
    random = np.random.default_rng(20261123)
    found = np.full(streams, np.inf)
    for stream in range(streams):
        is_canary = random.random(rows) < 0.2
        errors = np.where(is_canary, np.where(random.random(rows) < 0.5, far, 0.0), 0.5)
        log_e = log_e_process(errors / 2, is_canary, margin=0.05 / 2, smallest=0.05 / 2)
        stop = np.flatnonzero(log_e >= -np.log(ALPHA))
        if stop.size:
            found[stream] = np.flatnonzero(is_canary)[BLOCK - 1 :: BLOCK][stop[0]] + 1
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="A/A streams, and a tenth per regression")
    streams = parser.parse_args().streams
    begun = time.monotonic()
    print(
        f"alpha {ALPHA}, power {POWER} of the fixed test, {streams} equal streams, {streams // 10} of a regression"
    )
    print("share  champion  margin | equal canary: stops | worse by exactly the margin: stops")
    for share, champion, margin in TRAFFIC:
        planned = rows_of_a_fixed_test(share, champion, champion + 2 * margin, margin)
        equal = stops(streams, int(planned), share, champion, champion, margin)
        edge = stops(streams, int(planned), share, champion, champion + margin, margin)
        print(
            f"{share:5}  {champion:8}  {margin:6} | {np.isfinite(equal).mean():18.2%} | {np.isfinite(edge).mean():.2%}"
            f"   ({planned:.0f} rows each)",
            flush=True,
        )
    print(
        "share  champion  margin  worse by | rows on average | of the planned test | of a test that knows the size"
    )
    shares: list[float] = []
    for share, champion, margin in TRAFFIC:
        planned = rows_of_a_fixed_test(share, champion, champion + 2 * margin, margin)
        for times in TIMES:
            worse = champion + times * margin
            rows = int(4 * planned)
            mean = np.minimum(stops(streams // 10, rows, share, champion, worse, margin), rows).mean()
            shares.append(mean / planned)
            known = mean / rows_of_a_fixed_test(share, champion, worse, margin)
            print(
                f"{share:5}  {champion:8}  {margin:6}  {times} margins | {mean:15.0f} | {mean / planned:19.0%} | "
                f"{known:.0%}",
                flush=True,
            )
    print(f"mean over all regressions: {np.mean(shares):.0%} of the rows of the planned fixed test")
    print(
        "mae up to 2, margin 0.05, share 0.2, champion always 0.5, canary 0 or more: canary | stops | rows, median"
    )
    for far in (1.1, 1.2, 1.4, 2.0):
        found = found_by_mae(streams // 10, 50_000, far)
        print(
            f"{far / 2:5} | {np.isfinite(found).mean():7.2%} | {np.median(found):.0f} of 50000",
            flush=True,
        )
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()

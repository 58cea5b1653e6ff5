"""Canary watches: false stops under continuous looking, and rows until a verdict.

`python -m benchmarks.research.canary [--streams 10000]` prints tables. Errors are drawn independently, one row for each
entity. A false stop is an equal canary whose e-process ever reached 1 / alpha, with a look after every block. The fixed
test is the one-sided z-test of two shares with unpooled variances and alpha 0.05. Two questions are measured:

* Regressions of 2, 3, 4 and 6 margins, rows until the canary is taken back, against the fixed test with power 0.9 that
  is planned for the smallest of them, because the size of a regression is not known beforehand.
* The regression of 2 margins alone, rows until the verdict "worse" or "no worse", against the fixed test of the same
  power. Both may end with the wrong verdict.
"""

import argparse
import time
from statistics import NormalDist

import numpy as np

from ml_assets.use.live.comparison import MISSED
from ml_assets.use.live.e_process import block_ends, log_e_process

ALPHA, POWER = 0.05, 0.9
TRAFFIC = ((0.1, 0.02, 0.02), (0.1, 0.1, 0.05), (0.5, 0.02, 0.02), (0.5, 0.1, 0.05))
"""Share of the canary, error rate of the champion, margin."""
TIMES = (2, 3, 4, 6)
"""Regressions, in margins."""


def rows_of_a_fixed_test(
    share: float, champion: float, canary: float, margin: float, power: float = POWER
) -> float:
    """Return the rows of both arms that a z-test needs."""
    z = NormalDist().inv_cdf(1 - ALPHA) + NormalDist().inv_cdf(power)
    variance = champion * (1 - champion) / (1 - share) + canary * (1 - canary) / share
    return z**2 * variance / (canary - champion - margin) ** 2


def verdicts(
    streams: int,
    rows: int,
    share: float,
    champion: float,
    canary: float,
    margin: float,
    *,
    both: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row at which each stream shows "worse", and with `both` "no worse", `[streams]`; infinity if it does
    not."""
    random = np.random.default_rng(20261123)
    worse, fine = np.full(streams, np.inf), np.full(streams, np.inf)
    for stream in range(streams):
        is_canary = random.random(rows) < share
        errors = (random.random(rows) < np.where(is_canary, canary, champion)).astype(float)
        ends = block_ends(is_canary)
        worse[stream] = _first(ends, log_e_process(errors, is_canary, margin=margin, smallest=margin), ALPHA)
        if not both:
            continue
        against = log_e_process(1 - errors, is_canary, margin=-2 * margin, smallest=margin)
        fine[stream] = _first(ends, against, MISSED)
    return worse, fine


def _first(ends: np.ndarray, log_e: np.ndarray, alpha: float) -> float:
    stop = np.flatnonzero(log_e >= -np.log(alpha))
    return float(ends[stop[0]] + 1) if stop.size else np.inf


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
        found[stream] = _first(block_ends(is_canary), log_e, ALPHA)
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--streams",
        type=int,
        default=10_000,
        help="A/A streams over all traffic; a twentieth for each regression",
    )
    streams = parser.parse_args().streams
    few, of_each = streams // 20, streams // len(TRAFFIC)
    begun = time.monotonic()
    print(
        f"alpha {ALPHA}, power {POWER} of the fixed test, {of_each} equal streams each, {few} of a regression"
    )
    print("share  champion  margin | equal canary: stops | worse by exactly the margin: stops")
    for share, champion, margin in TRAFFIC:
        planned = rows_of_a_fixed_test(share, champion, champion + 2 * margin, margin)
        equal, _ = verdicts(of_each, int(planned), share, champion, champion, margin)
        edge, _ = verdicts(of_each, int(planned), share, champion, champion + margin, margin)
        print(
            f"{share:5}  {champion:8}  {margin:6} | {np.isfinite(equal).mean():18.2%} | {np.isfinite(edge).mean():.2%}"
            f"   ({planned:.0f} rows each)",
            flush=True,
        )
    print("share  champion  margin  worse by | rows until it is taken back | of the planned test")
    shares: list[float] = []
    until_verdict: list[str] = []
    known: list[float] = []
    for share, champion, margin in TRAFFIC:
        planned = rows_of_a_fixed_test(share, champion, champion + 2 * margin, margin)
        rows = int(4 * planned)
        for times in (0, *TIMES):
            both = times in (0, 2)
            worse, fine = verdicts(few, rows, share, champion, champion + times * margin, margin, both=both)
            if times:
                mean = np.minimum(worse, rows).mean()
                shares.append(mean / planned)
                print(
                    f"{share:5}  {champion:8}  {margin:6}  {times} margins | {mean:27.0f} | {mean / planned:.0%}",
                    flush=True,
                )
            if both:
                first = np.minimum(np.minimum(worse, fine), rows)
                power = float((worse < fine).mean())
                said = f"{share:5}  {champion:8}  {margin:6}  {times} margins | {power:12.1%} | {first.mean():18.0f}"
                if times:
                    same = rows_of_a_fixed_test(share, champion, champion + 2 * margin, margin, power)
                    known.append(first.mean() / same)
                    said += f" | {known[-1]:.0%} of {same:.0f}"
                until_verdict.append(said)
    print(f"mean over all regressions: {np.mean(shares):.0%} of the rows of the planned fixed test")
    print(
        "share  champion  margin  worse by | said worse | rows until a verdict | of the fixed test of that power"
    )
    print("\n".join(until_verdict))
    print(f"mean at 2 margins: {np.mean(known):.0%} of the rows of the fixed test of the same power")
    print(
        "mae up to 2, margin 0.05, share 0.2, champion always 0.5, canary 0 or more: canary | stops | rows, median"
    )
    for far in (1.1, 1.2, 1.4, 2.0):
        found = found_by_mae(few, 50_000, far)
        print(
            f"{far / 2:5} | {np.isfinite(found).mean():7.2%} | {np.median(found):.0f} of 50000",
            flush=True,
        )
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()

"""Decisions of a gate on 2,000 simulated pairs of models: equal ones, and a challenger that is better by 0.02 AUC.

Rows of a day share what makes them hard, and each model has its own error that a whole day shares, so single rows are
not independent. The gate is `better_than: champion` at confidence 0.95, that is one-sided 0.025, decided by
`evaluation.comparison.gates` on redraws of days. An equal challenger that is blessed is a false alarm. The peer decides
by single rows (a z-test of the paired log losses), and blesses equal models too often.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}

from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np

from benchmarks._report import Result, emit, parse_args
from ml_assets.model.evaluation.comparison.gates import Cell, Champion, decide
from ml_assets.model.evaluation.evaluation_document import Role
from ml_assets.model.evaluation.metrics.bootstrap import Estimate, block_form, draw_blocks, estimate
from ml_assets.model.evaluation.metrics.metrics import METRICS, Vector, log_losses
from ml_assets.model.evaluation.spec import EvaluationSpec

PAIRS, DRAWS = 2_000, 1_000
ROWS_A_DAY = 200
"""Mean number of rows of a day; days have half to one and a half times as many."""
BETTER_BY = 0.02
MOST_FALSE, LEAST_FOUND = 0.05, 0.8
DAYS = (61, 14)
"""Days of the holdout: two months such as the flights', and two weeks."""
CHAMPION_NOISE = 0.8
"""Standard deviation of the champion's own error of each row, in logits."""
DAY_ERRORS = (0.25, 0.5)
"""Standard deviation of a model's error of a day, as a share of its error of a row. The bar of a better challenger is
for the first: the second is measured too, to show how many more days such models need."""
_METRICS = ("auc", "logloss")
_SPECS = {
    name: EvaluationSpec.model_validate(
        {
            "objective": "binary",
            "draws": DRAWS,
            "gates": [{"name": "better", "metric": name, "better_than": "champion"}],
        }
    )
    for name in _METRICS
}


@dataclass(frozen=True)
class Pair:
    """Labels and two models' predictions of the same rows."""

    y: Vector
    challenger: Vector
    champion: Vector
    days: np.ndarray
    """Day of each row, from 0."""


def pair(random: np.random.Generator, days: int, challenger_noise: float, day_error: float) -> Pair:
    """Simulate a holdout and both models. With `CHAMPION_NOISE` for the challenger, both are equally good."""
    sizes = random.integers(ROWS_A_DAY // 2, ROWS_A_DAY * 3 // 2 + 1, days)
    day = np.repeat(np.arange(days), sizes)
    known, hardness = random.normal(0, 1, len(day)), random.normal(0, 0.6, days)
    logits = -1.4 + 0.9 * known
    y = (random.random(len(day)) < _sigmoid(logits + hardness[day])).astype(np.float64)

    def predicted(noise: float) -> Vector:
        of_day = random.normal(0, noise * day_error, days)
        return _sigmoid(logits + random.normal(0, noise, len(day)) + of_day[day])

    return Pair(y, predicted(challenger_noise), predicted(CHAMPION_NOISE), day)


def blessed(one: Pair, days: int, seed: int) -> dict[str, bool]:
    """Return, for each metric, True if the gate blesses the challenger."""
    counts = draw_blocks(days, DRAWS, seed)
    roles: dict[Role, Vector] = {"challenger": one.challenger, "champion": one.champion}
    estimates: dict[tuple[Role, str], Estimate] = {
        (role, name): estimate(block_form(METRICS[name], one.y, p, one.days, days), counts, days)
        for role, p in roles.items()
        for name in _METRICS
    }
    cell = Cell(None, len(one.y), days, estimates)
    return {name: decide(spec, [cell], Champion("peer")).status == "blessed" for name, spec in _SPECS.items()}


def blessed_by_rows(one: Pair) -> bool:
    """Decide by a one-sided z-test at 0.025 that takes single rows for independent."""
    gains = log_losses(one.y, one.champion) - log_losses(one.y, one.challenger)
    return bool(gains.mean() > NormalDist().inv_cdf(0.975) * gains.std() / np.sqrt(len(gains)))


def better_noise(day_error: float) -> float:
    """Return the noise with which a challenger's AUC is larger by `BETTER_BY`, on 600,000 rows."""
    auc = METRICS["auc"]
    low, high = 0.0, CHAMPION_NOISE
    for _ in range(20):
        middle = (low + high) / 2
        one = pair(np.random.default_rng(1), 3_000, middle, day_error)
        gain = auc.value(one.y, one.challenger) - auc.value(one.y, one.champion)
        low, high = (middle, high) if gain > BETTER_BY else (low, middle)
    return (low + high) / 2


def shares(pairs: int, days: int, challenger_noise: float, day_error: float) -> dict[str, float]:
    """Return the share of blessed challengers by metric, and `by rows`."""
    counts: dict[str, int] = dict.fromkeys((*_METRICS, "by rows"), 0)
    for number in range(pairs):
        one = pair(np.random.default_rng([days, number]), days, challenger_noise, day_error)
        for name, is_blessed in (blessed(one, days, number) | {"by rows": blessed_by_rows(one)}).items():
            counts[name] += is_blessed
    return {name: count / pairs for name, count in counts.items()}


def _sigmoid(logits: Vector) -> Vector:
    return 1 / (1 + np.exp(-logits))


def _case(days: int, day_error: float) -> str:
    return f"{days} days of about {ROWS_A_DAY} rows, error of a day {day_error:g} of a row's"


def main() -> int:
    """Simulate; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    pairs = 100 if arguments.quick else PAIRS
    results: list[Result] = []
    for days, day_error in product(DAYS, DAY_ERRORS):
        equal = shares(pairs, days, CHAMPION_NOISE, day_error)
        results += [
            Result(
                name=f"{pairs:,} pairs of equal models, {_case(days, day_error)}: blessed by {name}",
                value=equal[name],
                unit="share",
                peers={"z-test of single rows": equal["by rows"]} if name == "logloss" else {},
                bar=f"≤ {MOST_FALSE:g}",
                ok=equal[name] <= MOST_FALSE,
            )
            for name in _METRICS
        ]
    for day_error in DAY_ERRORS:
        has_bar = day_error == DAY_ERRORS[0]
        found = shares(pairs, DAYS[0], better_noise(day_error), day_error)["auc"]
        results.append(
            Result(
                name=f"{pairs:,} challengers better by {BETTER_BY:g} AUC, {_case(DAYS[0], day_error)}: blessed by auc",
                value=found,
                unit="share",
                bar=f"≥ {LEAST_FOUND:g}" if has_bar else "none",
                ok=found >= LEAST_FOUND or not has_bar,
            )
        )
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

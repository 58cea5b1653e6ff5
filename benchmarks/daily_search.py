"""Search that continues from day to day: 30 simulated days, and a change of regime on day 15.

Studies are those of the project, in memory; a training is a formula. The loss of values on a day is a level of that
day, plus a paraboloid over four parameters, plus noise. Its lowest point drifts a little each day, and jumps on day 15.
Random values have a loss of about 0.03 above the lowest one, as in a study of `flight_delay`. Peers: a full study of 40
trials each day, from nothing, and a few trials each day without `quiet_trials`.

Cost: trials of a day over those of a full study, as a mean over all days. Regret: loss of the day's choice minus that
of the full study, both without noise. Recovered: days from the jump to the first one with a regret of at most 0.001.
"""

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import optuna
from _report import Result, emit, parse_args
from optuna.storages import InMemoryStorage

from ml_assets.extras.tuning.prior import Prior
from ml_assets.extras.tuning.spec import PriorSection, Scalar, TuningSection
from ml_assets.extras.tuning.study import Study, StudyFacts
from ml_assets.extras.tuning.study_result import StudyResult, TrialOutcome
from ml_assets.foundation.days import Days
from resources.ledger import TrainedOn

DAYS, JUMP, MONTHS = 30, 15, 10
FULL = 40
"""Trials of a full study."""
WEIGHTS = np.array([0.12, 0.04, 0.02, 0.01])
DRIFT, NOISE, LEVEL = 0.01, 0.0002, 0.01
"""Standard deviations: of the lowest point from day to day, of a loss, of the change of a day's level."""
NAMES = [f"p{number}" for number in range(len(WEIGHTS))]
SPACE = {"hyperparameters": {name: {"kind": "float", "low": 0.0, "high": 1.0} for name in NAMES}}
WINDOW = TrainedOn(commit="c", table="features/days", first="a", last="b", partitions=2)
MOST_COST, MOST_REGRET, MOST_DAYS = 0.1, 0.001, 3
QUIET = "quiet_trials: 2"
WAYS: dict[str, tuple[int, PriorSection]] = {
    QUIET: (FULL, PriorSection(quiet_trials=2)),
    "quiet_trials: 3": (FULL, PriorSection(quiet_trials=3)),
    "4 trials each day": (4, PriorSection()),
}
"""Name → trials of a study at most, and the prior."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """Losses of one day."""

    lowest: np.ndarray
    """Values with the lowest loss."""
    level: float
    of_full: float = 0.0
    """Loss of the full study's choice above the lowest one."""

    def above(self, values: Mapping[str, Scalar]) -> float:
        """Return the loss of values above the lowest one."""
        point = np.array([float(values[f"hyperparameters.{name}"] or 0) for name in NAMES])
        return float(WEIGHTS @ np.square(point - self.lowest))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Study of one day."""

    cost: float
    regret: float


def month(number: int) -> list[Day]:
    """Return the day before a month and its days, each with a full study."""
    random = np.random.default_rng(number)
    lowest, level = random.uniform(0.2, 0.8, len(WEIGHTS)), 0.5
    days: list[Day] = []
    for at in range(DAYS + 1):
        lowest = np.clip(lowest + random.normal(0, DRIFT, len(WEIGHTS)), 0, 1)
        level += random.normal(0, LEVEL)
        if at == JUMP:
            lowest = (lowest + random.uniform(0.3, 0.7, len(WEIGHTS))) % 1.0
        day = Day(lowest=lowest, level=level)
        full = search(day, FULL, None, None, 1000 * number + at)
        days.append(Day(lowest=lowest, level=level, of_full=day.above(full.chosen.parameters)))
    return days


def search(
    day: Day, trials: int, prior: PriorSection | None, before: StudyResult | None, seed: int
) -> StudyResult:
    """Run a study of one day."""
    section = TuningSection.model_validate(
        {
            "space": SPACE,
            "trials": trials,
            "prior": None if prior is None else prior.model_dump(exclude_unset=True),
        }
    )
    facts = StudyFacts(model="days", partition="", snapshot="", decided_by={})
    begins = Prior.of(before, section.space, section.prior, {})
    study, random = (
        Study(InMemoryStorage(), "day", section, seed, facts, 1, begins),
        np.random.default_rng(seed),
    )
    while (trial := study.next()) is not None:
        loss = day.level + day.above(trial.parameters) + float(random.normal(0, NOISE))
        outcome = TrialOutcome(
            number=trial.number, parameters=trial.parameters, state="finished", validation_loss=loss
        )
        study.end(trial, outcome)
    return StudyResult(
        study="",
        name="day",
        model="days",
        partition="",
        snapshot="",
        window=WINDOW,
        seen=Days(),
        sampler="tpe",
        pruner="none",
        trials=tuple(study.outcomes()),
        inherited=tuple(study.inherited()),
    )


def searched(days: list[Day], number: int, trials: int, prior: PriorSection) -> list[Outcome]:
    """Search on each day of a month. The day before had a full study."""
    result = search(days[0], FULL, None, None, 1000 * number)
    found: list[Outcome] = []
    for at, day in enumerate(days[1:], 1):
        result = search(day, trials, prior, result, 1000 * number + at)
        regret = day.above(result.chosen.parameters) - day.of_full
        found.append(Outcome(cost=len(result.trials) / FULL, regret=regret))
    return found


def recovered(days: list[Outcome]) -> int:
    """Return the days from the jump to the first one with little regret; `DAYS` if there is none."""
    return next((at for at, one in enumerate(days[JUMP - 1 :]) if one.regret <= MOST_REGRET), DAYS)


def _mean(months: list[list[Outcome]], of: Callable[[Outcome], float]) -> float:
    return statistics.fmean(of(day) for days in months for day in days)


def _in_words(months: list[list[Outcome]]) -> str:
    after = [recovered(days) for days in months]
    regrets = [
        statistics.fmean(day.regret for days in months for day in days[part])
        for part in (slice(0, JUMP - 1), slice(JUMP - 1, JUMP), slice(JUMP - 1 + MOST_DAYS, None))
    ]
    dear = statistics.fmean(sum(day.cost == 1 for day in days) for days in months)
    return (
        f"cost {_mean(months, lambda day: day.cost):5.1%}  regret {_mean(months, lambda day: day.regret):+.5f}: before "
        f"the jump {regrets[0]:+.5f}, on its day {regrets[1]:+.5f}, from {MOST_DAYS} days later on {regrets[2]:+.5f}  "
        f"full studies in a month {dear:.1f}  recovered within {MOST_DAYS} days: "
        f"{sum(one <= MOST_DAYS for one in after)} of {len(after)} months"
    )


def main() -> int:
    """Simulate; return exit status 1 if a bar does not hold."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    arguments = parse_args(__doc__)
    count = 2 if arguments.quick else MONTHS
    months = [month(number) for number in range(count)]
    ways: dict[str, list[list[Outcome]]] = {}
    for name, (trials, prior) in WAYS.items():
        ways[name] = [searched(days, number, trials, prior) for number, days in enumerate(months)]
        print(f"{name:18s} {_in_words(ways[name])}", file=sys.stderr, flush=True)
    costs = {name: _mean(of, lambda day: day.cost) for name, of in ways.items()}
    regrets = {name: _mean(of, lambda day: day.regret) for name, of in ways.items()}
    in_time = {
        name: statistics.fmean(recovered(days) <= MOST_DAYS for days in of) for name, of in ways.items()
    }

    def claim(name: str, figures: Mapping[str, float], unit: str, bar: str, ok: bool) -> Result:
        peers = {way: value for way, value in figures.items() if way != QUIET}
        return Result(name=name, value=figures[QUIET], unit=unit, peers=peers, bar=bar, ok=ok)

    results = [
        claim(
            f"trials of a day with {QUIET}, over {FULL}",
            costs,
            "of a full study",
            f"≤ {MOST_COST:g}",
            costs[QUIET] <= MOST_COST,
        ),
        claim(
            "mean regret of a day's choice",
            regrets,
            "loss",
            f"≤ {MOST_REGRET:g}",
            regrets[QUIET] <= MOST_REGRET,
        ),
        claim(
            f"months recovered within {MOST_DAYS} days",
            in_time,
            "of the months",
            "all",
            in_time[QUIET] == 1,
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

"""Coverage of the intervals of 80 % that `ml-assets plan` expects of a training, on values that it has not seen.

`python benchmarks/claims/pipelines/expected.py [--philly FILE]`

* Synthetic histories of 2 to 50 trainings: hours are log-normal, gamma, uniform, or of two kinds (one in five stops
  early). The next value is drawn like the others.
* With `--philly`: durations of jobs of three virtual clusters of the Philly trace (Microsoft, msr-fiddle/philly-traces,
  CC-BY-4.0; Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", 2019), as
  columns window, offset_seconds, duration_seconds, gpus and team. A team counts as a pipeline and GPUs as workers. A
  random history of a team is drawn, and another job of the same size is the next. Shown beside it: jobs in the order
  of their submission, each predicted from those that had ended. Bursts of jobs of hundreds then have no ended ones of
  their kind, so fewer are covered.
"""

import argparse
import csv
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks._report import Result, emit
from ml_assets.extras.costs.expected import PastTraining, expected_from

LEAST, MOST = 75.0, 85.0
DRAWS = 4000
LONGEST_HISTORY = 50


def main() -> int:
    """Draw, predict, count, decide."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller input and fewer rounds")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--philly", type=Path, help="CSV file of the Philly trace")
    asked = parser.parse_args()
    draws = DRAWS // 4 if asked.quick else DRAWS
    results = [_result(f"synthetic hours, {name}", _synthetic(draw, draws)) for name, draw in _WAYS.items()]
    if asked.philly is not None:
        jobs = _read(asked.philly)
        results.append(_result("jobs of the Philly trace, random histories", _held_out(jobs, draws)))
        in_order = _result("jobs of the Philly trace in order of submission, many in bursts", _in_order(jobs))
        results.append(Result(name=in_order.name, value=in_order.value, unit="%", bar="shown", ok=True))
    return emit(results, json=asked.json)


_WAYS: dict[str, Callable[[random.Random], float]] = {
    "log-normal": lambda draw: draw.lognormvariate(0, 0.4),
    "log-normal with a wide spread": lambda draw: draw.lognormvariate(0, 1.5),
    "gamma": lambda draw: draw.gammavariate(2, 1),
    "uniform": lambda draw: draw.uniform(0.5, 1.5),
    "one in five stops early": lambda draw: (
        draw.gauss(1, 0.05) if draw.random() < 0.8 else draw.uniform(0.2, 0.8)
    ),
}


def _synthetic(draw: Callable[[random.Random], float], draws: int) -> Iterable[bool]:
    generator = random.Random(7)
    for _ in range(draws):
        history = [draw(generator) for _ in range(generator.randint(2, LONGEST_HISTORY))]
        yield _holds([_one(hours, 1, place) for place, hours in enumerate(history)], 1, draw(generator))


def _held_out(jobs: Sequence[dict[str, float]], draws: int) -> Iterable[bool]:
    generator = random.Random(7)
    by_team: defaultdict[float, list[dict[str, float]]] = defaultdict(list)
    for job in jobs:
        by_team[job["team"]].append(job)
    for _ in range(draws):
        wanted = generator.choice(jobs)
        others = [one for one in by_team[wanted["team"]] if one is not wanted]
        history = generator.sample(others, min(len(others), generator.randint(2, 4 * LONGEST_HISTORY)))
        yield _holds(
            [_one(one["hours"], one["gpus"], place) for place, one in enumerate(history)],
            wanted["gpus"],
            wanted["hours"],
        )


def _in_order(jobs: Sequence[dict[str, float]]) -> Iterable[bool]:
    for number, wanted in enumerate(jobs):
        ended = [
            _one(one["hours"], one["gpus"], one["began"] + one["hours"])
            for one in jobs[:number]
            if one["team"] == wanted["team"] and one["began"] + one["hours"] <= wanted["began"]
        ]
        if len(ended) > 1:
            yield _holds(ended, wanted["gpus"], wanted["hours"])


def _one(hours: float, workers: float, at: float) -> PastTraining:
    return PastTraining(at=at, kind=("", int(workers)), hours=hours, money=None, start_hours=0.0)


def _holds(history: Sequence[PastTraining], workers: float, hours: float) -> bool:
    found = expected_from(history, ("", int(workers))).hours
    if found is None or found.low is None or found.high is None:
        return True
    return found.low <= hours <= found.high


def _read(file: Path) -> list[dict[str, float]]:
    """Return the jobs in order of submission; times in hours, teams as numbers."""
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    teams = sorted({row["team"] for row in rows})
    jobs = [
        {
            "began": 10_000.0 * float(row["window"]) + float(row["offset_seconds"]) / 3600,
            "hours": float(row["duration_seconds"]) / 3600,
            "gpus": float(row["gpus"]),
            "team": float(teams.index(row["team"])),
        }
        for row in rows
    ]
    return sorted(jobs, key=lambda one: one["began"])


def _result(name: str, held: Iterable[bool]) -> Result:
    found = list(held)
    share = 100 * sum(found) / len(found)
    return Result(
        name=f"{name}: next values within the interval of 80 %, of {len(found)}",
        value=share,
        unit="%",
        bar=f"{LEAST:g} to {MOST:g} %",
        ok=LEAST <= share <= MOST,
    )


if __name__ == "__main__":
    raise SystemExit(main())

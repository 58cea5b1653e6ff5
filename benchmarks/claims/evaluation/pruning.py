"""Pruners of a study, replayed on the held-out learning curves of `learning_curves.npz`: epochs saved, and regret.

Each replay is a study of 64 trials of 27 epochs over curves that were trained in full before. The project's pruners run
through the project's own studies, one trial at a time. Peers are plain Optuna on the same 64 curves: Hyperband with
random draws, and TPE with the median pruner, whose draws take the nearest curve that is left. Regret is the chosen
trial's validation loss minus the lowest of all 64 trials, had all been trained. A float label is scaled to a deviation
of 1.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.storages import InMemoryStorage

from benchmarks._report import Result, emit, parse_args
from benchmarks.research.make_learning_curves import BANK, EPOCHS, HELD_OUT, PARAMETERS
from ml_assets.extras.tuning.study import Study, StudyFacts
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.study_result import TrialOutcome

TRIALS = 64
REPLAYS = 10
"""Random choices of trials from the curves of each task."""
OURS = ("median", "successive_halving", "hyperband")
BARS = {"successive_halving": (0.6, 0.003)}
"""Pruner → least share of epochs saved, largest mean regret."""


@dataclass(frozen=True, kw_only=True)
class CurvesOfTrials:
    """Learning curves of the trials of one study."""

    losses: np.ndarray[Any, Any]
    """Lowest validation loss up to each epoch, `[TRIALS, EPOCHS]`."""
    values: np.ndarray[Any, Any]
    """Hyperparameters `[TRIALS, 5]`, logarithms of those that were drawn so, scaled to a deviation of 1."""


@dataclass(frozen=True, kw_only=True)
class ReplayedStudy:
    """Replayed study."""

    epochs: int
    starts: int
    """Starts of workers: a continued trial starts again."""
    regret: float


def studies(task: str, count: int) -> Iterator[CurvesOfTrials]:
    """Yield random choices of the curves of `task`; the same for each pruner."""
    with np.load(BANK) as bank:
        losses = np.minimum.accumulate(bank[f"{task}/curves"].astype(np.float64), axis=1)
        values = bank[f"{task}/values"].astype(np.float64)
    logarithmic = [name in ("learning_rate", "weight_decay", "hidden", "batch") for name in PARAMETERS]
    values[:, logarithmic] = np.log(values[:, logarithmic])
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    for number in range(count):
        chosen = np.random.default_rng(number).permutation(len(losses))[:TRIALS]
        yield CurvesOfTrials(losses=losses[chosen], values=values[chosen])


def replay_ours(pruner: str, curves: CurvesOfTrials) -> ReplayedStudy:
    """Run a study of this project with `pruner`."""
    space = {"hyperparameters": {"curve": {"kind": "categorical", "choices": list(range(TRIALS))}}}
    declared = {"space": space, "sampler": "grid", "pruner": pruner, "trials": TRIALS}
    section = TuningSection.model_validate(declared)
    facts = StudyFacts(model="curves", partition="", snapshot="", decided_by={})
    study = Study(InMemoryStorage(), pruner, section, 1, facts, EPOCHS)
    starts, last = 0, np.zeros(TRIALS, int)
    while (trial := study.next()) is not None:
        starts += 1
        losses = curves.losses[trial.number]
        epoch = next(
            epoch
            for epoch, loss in enumerate(losses.tolist(), 1)
            if study.should_pause(trial, epoch, loss) or epoch == EPOCHS
        )
        last[trial.number] = epoch
        is_paused = epoch < EPOCHS
        study.end(
            trial,
            TrialOutcome(
                number=trial.number,
                parameters=trial.parameters,
                state="paused" if is_paused else "finished",
                validation_loss=float(losses[epoch - 1]),
                epochs=epoch,
                most_epochs=EPOCHS,
                pauses=(epoch,) if is_paused else (),
            ),
        )
    finished = [one.number for one in study.outcomes() if one.state == "finished"]
    return _replay(curves, last, finished, starts)


def _replay(
    curves: CurvesOfTrials, last: np.ndarray[Any, Any], finished: list[int], starts: int
) -> ReplayedStudy:
    ends = curves.losses[:, -1]
    return ReplayedStudy(
        epochs=int(last.sum()), starts=starts, regret=float(ends[finished].min() - ends.min())
    )


def _replay_optuna(
    curves: CurvesOfTrials,
    pruner: optuna.pruners.BasePruner,
    draw: Callable[[optuna.Study, list[int]], tuple[Any, int]],
) -> ReplayedStudy:
    """Run a study of plain Optuna; `draw` returns a trial and which of the curves that are left it has."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1), pruner=pruner)
    left, finished, last = list(range(TRIALS)), list[int](), np.zeros(TRIALS, int)
    while left:
        trial, number = draw(study, left)
        left.remove(number)
        for epoch in range(1, EPOCHS + 1):
            last[number] = epoch
            trial.report(curves.losses[number, epoch - 1], epoch)
            if trial.should_prune() and epoch < EPOCHS:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            finished.append(number)
            study.tell(trial, curves.losses[number, -1])
    return _replay(curves, last, finished, TRIALS)


def replay_hyperband(curves: CurvesOfTrials) -> ReplayedStudy:
    """Run Optuna's Hyperband over the curves in their random order."""
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3)
    return _replay_optuna(curves, pruner, lambda study, left: (study.ask(), left[0]))


def replay_tpe_median(curves: CurvesOfTrials) -> ReplayedStudy:
    """Run Optuna's TPE with its median pruner, both with their defaults."""

    def draw(study: optuna.Study, left: list[int]) -> tuple[Any, int]:
        trial = study.ask()
        wanted = np.array([trial.suggest_float(name, -2.0, 2.0) for name in PARAMETERS])
        distances = np.square(curves.values[left] - wanted).sum(axis=1)
        return trial, left[int(distances.argmin())]

    return _replay_optuna(curves, optuna.pruners.MedianPruner(), draw)


def _results(tasks: list[str], count: int) -> list[Result]:
    ways: dict[str, Callable[[CurvesOfTrials], ReplayedStudy]] = {
        **{pruner: lambda curves, pruner=pruner: replay_ours(pruner, curves) for pruner in OURS},
        "Optuna Hyperband": replay_hyperband,
        "Optuna TPE + median": replay_tpe_median,
    }
    replays: dict[str, list[ReplayedStudy]] = {name: [] for name in ways}
    for task in tasks:
        for name, way in ways.items():
            of_task = [way(curves) for curves in studies(task, count)]
            replays[name] += of_task
            print(f"{task:14s} {name:20s} {_in_words(of_task)}", file=sys.stderr, flush=True)
    for name, every in replays.items():
        print(f"{'all tasks':14s} {name:20s} {_in_words(every)}", file=sys.stderr, flush=True)
    return [
        one for pruner, (saved, regret) in BARS.items() for one in _claims(pruner, saved, regret, replays)
    ]


def _saved(replays: list[ReplayedStudy]) -> float:
    return 1 - statistics.fmean(one.epochs for one in replays) / (TRIALS * EPOCHS)


def _regret(replays: list[ReplayedStudy]) -> float:
    return statistics.fmean(one.regret for one in replays)


def _in_words(replays: list[ReplayedStudy]) -> str:
    same, worst = sum(one.regret == 0 for one in replays), max(one.regret for one in replays)
    return (
        f"saved {_saved(replays):6.1%}  mean regret {_regret(replays):.5f}  worst {worst:.4f}  "
        f"same best {same} of {len(replays)}  starts {statistics.fmean(one.starts for one in replays):.0f}"
    )


def _claims(pruner: str, least: float, most: float, replays: dict[str, list[ReplayedStudy]]) -> list[Result]:
    others = [name for name in replays if name != pruner]
    saved, regret = _saved(replays[pruner]), _regret(replays[pruner])
    return [
        Result(
            name=f"epochs saved by {pruner}",
            value=100 * saved,
            unit="%",
            peers={name: 100 * _saved(replays[name]) for name in others},
            bar=f"≥ {100 * least:g} %",
            ok=saved >= least,
        ),
        Result(
            name=f"mean regret of {pruner}",
            value=regret,
            unit="loss",
            peers={name: _regret(replays[name]) for name in others},
            bar=f"≤ {most:g}",
            ok=regret <= most,
        ),
    ]


def main() -> int:
    """Replay; return exit status 1 if a bar does not hold."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    arguments = parse_args(__doc__)
    return emit(_results(list(HELD_OUT), REPLAYS // 2 if arguments.quick else REPLAYS), json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())

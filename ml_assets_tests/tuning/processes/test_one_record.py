"""One record for each decision of a study: a kill before any write to the storage changes no value and no pause."""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from optuna.storages import InMemoryStorage

from ml_assets.extras.tuning.study import Study, StudyFacts
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.study_result import TrialOutcome

SPACE = {
    "hyperparameters": {"hidden": {"kind": "int", "low": 8, "high": 128, "log": True}},
    "training": {"learning_rate": {"kind": "float", "low": 1e-4, "high": 0.1, "log": True}},
}
GRID = {
    "hyperparameters": {"hidden": {"kind": "int", "low": 8, "high": 11}},
    "training": {"epochs": {"kind": "categorical", "choices": [9, 27, 81]}},
}
EPOCHS = 9
FACTS = StudyFacts(model="shop", partition="2024-01-20", snapshot="2" * 64, decided_by={})
TRIALS = 12
"""The learning samplers draw the first ten at random."""


class _KilledError(BaseException):
    """The process ends."""


class _Mortal(InMemoryStorage):
    """Optuna's storage, whose user dies before the write number `at`, counted from 0."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at, self.writes = at, 0


def _write(name: str) -> Callable[..., Any]:
    def write(self: _Mortal, *arguments: Any, **named: Any) -> Any:
        if self.writes == self.at:
            self.at = None
            raise _KilledError
        self.writes += 1
        return getattr(InMemoryStorage, name)(self, *arguments, **named)

    return write


for _name in dir(InMemoryStorage):
    if _name.startswith(("set_", "create_", "delete_")):
        setattr(_Mortal, _name, _write(_name))


def _run(storage: _Mortal, section: TuningSection, *, epochs: int) -> list[TrialOutcome]:
    """Run the study in one process, which reads the epochs of a trial that it continues again."""
    study = Study(storage, "shop-1", section, 7, FACTS, EPOCHS)
    while (trial := study.next()) is not None:
        width = trial.parameters["hyperparameters.hidden"]
        assert isinstance(width, int)
        common: dict[str, Any] = {"number": trial.number, "parameters": trial.parameters}
        losses = [width / epoch for epoch in range(1, EPOCHS + 1)]
        paused = next(
            (
                epoch
                for epoch in range(1, epochs + 1)
                if study.should_pause(trial, epoch, losses[epoch - 1]) and epoch < EPOCHS
            ),
            None,
        )
        if paused is None:
            outcome = TrialOutcome(**common, state="finished", validation_loss=losses[-1])
        else:
            outcome = TrialOutcome(
                **common, state="paused", pauses=(paused,), validation_loss=losses[paused - 1]
            )
        study.end(trial, outcome)
    return study.outcomes()


@cache
def _unbroken(
    sampler: str, pruner: str, trials: int, epochs: int
) -> tuple[TuningSection, list[TrialOutcome], int]:
    section = TuningSection.model_validate(
        {
            "space": GRID if sampler == "grid" else SPACE,
            "sampler": sampler,
            "pruner": pruner,
            "trials": trials,
        }
    )
    storage = _Mortal()
    return section, _run(storage, section, epochs=epochs), storage.writes


def _killed(section: TuningSection, at: int, *, epochs: int) -> list[TrialOutcome]:
    storage = _Mortal(at)
    with pytest.raises(_KilledError):
        _run(storage, section, epochs=epochs)
    return _run(storage, section, epochs=epochs)


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe", "GPSampler", "QMCSampler"])
def test_a_kill_before_any_write_changes_no_value(sampler: str) -> None:
    """At all writes of the first trial and of the last one, when the learning samplers have learned."""
    section, outcomes, writes = _unbroken(sampler, "none", TRIALS, 0)
    assert len({tuple(one.parameters.values()) for one in outcomes}) == TRIALS
    for at in (*range(writes - 3 * (TRIALS - 1)), *range(writes - 3, writes)):
        assert _killed(section, at, epochs=0) == outcomes, at


PRUNERS = ["median", "successive_halving", "hyperband"]


def _require_same_pauses(pruner: str, step: int) -> None:
    section, outcomes, writes = _unbroken("random", pruner, 7, EPOCHS)
    assert {one.state for one in outcomes} == {"finished", "paused"}
    for at in itertools.islice(range(writes), step - 1, None, step):
        assert _killed(section, at, epochs=EPOCHS) == outcomes, at


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_kill_before_a_write_moves_no_pause(pruner: str) -> None:
    _require_same_pauses(pruner, step=11)


@pytest.mark.nightly
@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_kill_before_any_write_moves_no_pause(pruner: str) -> None:
    _require_same_pauses(pruner, step=1)

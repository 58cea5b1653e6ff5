"""Studies in Optuna's storage: killed at any moment, they neither lose nor repeat a trial, and draw the same values."""

import dataclasses
from typing import Any

import pytest
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage

from ml_assets.extras.tuning.study import BegunTrial, Study, StudyFacts
from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import (
    VALIDATION_LOSS,
    FloatRange,
    PrunerWarmupSection,
    SpaceSection,
    TuningSection,
)
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome
from resources.addresses import Address
from resources.ledger import TrainedOn
from resources.tracking.studies import open_storage

SPACE: dict[str, Any] = {
    "hyperparameters": {
        "hidden": {"kind": "int", "low": 8, "high": 128, "log": True},
        "activation": {"kind": "categorical", "choices": ["relu", "gelu", None]},
    },
    "training": {
        "learning_rate": {"kind": "float", "low": 1e-4, "high": 0.1, "log": True},
        "category_dropout": {"kind": "float", "low": 0.0, "high": 0.5, "step": 0.1},
    },
}
ONLY_GELU = {"when": {"hyperparameters.activation": ["gelu"]}}
CONDITIONAL = {
    "hyperparameters": SPACE["hyperparameters"],
    "training": {name: values | ONLY_GELU for name, values in SPACE["training"].items()},
}
FEW = {"when": {"hyperparameters.hidden": [8, 16]}}
GRID: dict[str, Any] = {
    "hyperparameters": {"hidden": {"kind": "int", "low": 8, "high": 32, "step": 8}},
    "training": {"category_dropout": {"kind": "float", "low": 0.0, "high": 0.1, "step": 0.1} | FEW},
}
EPOCHS = 9
FACTS = StudyFacts(model="shop", partition="2024-01-20", snapshot="2" * 64, decided_by={"sampler": "tpe"})
SAMPLERS = ["random", "tpe", "GPSampler", "QMCSampler", "grid"]


def _section(sampler: str, trials: int = 6) -> TuningSection:
    space = {"grid": GRID, "random": CONDITIONAL, "tpe": CONDITIONAL}.get(sampler, SPACE)
    return TuningSection.model_validate({"space": space, "sampler": sampler, "trials": trials})


def _study(storage: BaseStorage, section: TuningSection, name: str, most_epochs: int = EPOCHS) -> Study:
    """Open the study as a new process does."""
    return Study(storage, name, section, 7, FACTS, most_epochs)


def _ended(trial: BegunTrial) -> TrialOutcome:
    """Return an outcome that depends on the values alone; every fifth trial fails."""
    common: dict[str, Any] = {"number": trial.number, "parameters": trial.parameters}
    if trial.number % 5 == 4:
        return TrialOutcome(**common, state="failed", why="Diverged: the loss was nan")
    loss = sum(float(value) for value in trial.parameters.values() if isinstance(value, int | float))
    return TrialOutcome(**common, state="finished", validation_loss=loss)


def _outcomes(
    storage: RDBStorage, section: TuningSection, name: str, killed_at: frozenset[int] = frozenset()
) -> list[TrialOutcome]:
    """Run a study to its end. At the trials of `killed_at` its process dies while the trial trains."""
    study = _study(storage, section, name)
    left = set(killed_at)
    while (trial := study.next()) is not None:
        if trial.number in left:
            left.remove(trial.number)
            study = _study(storage, section, name)
            assert study.next() == trial
        study.end(trial, _ended(trial))
        study.end(trial, _ended(trial))  # a second process that followed the same trial
    return study.outcomes()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> RDBStorage:
    """SQLite, as a run opens it."""
    return open_storage(Address(f"sqlite:///{tmp_path_factory.mktemp('studies')}/studies.db"))


@pytest.fixture(scope="module")
def other_storage(tmp_path_factory: pytest.TempPathFactory) -> RDBStorage:
    """Another home."""
    return open_storage(Address(f"sqlite:///{tmp_path_factory.mktemp('other')}/studies.db"))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_killed_study_ends_like_an_unbroken_one(sampler: str, storage: RDBStorage) -> None:
    section = _section(sampler)
    unbroken = _outcomes(storage, section, f"unbroken-{sampler}")
    assert _outcomes(storage, section, f"killed-{sampler}", frozenset({0, 3, 4})) == unbroken
    assert [one.number for one in unbroken] == list(range(6))
    for one in unbroken:
        assert section.space.holds(one.parameters)
    different = {tuple(one.parameters.items()) for one in unbroken}
    assert len(different) == len(unbroken)


def _side_by_side(storage: RDBStorage, section: TuningSection, name: str, ends: int) -> list[TrialOutcome]:
    """Run three trials at a time; end the first (0) or the last (-1) of them. A kill comes before each end."""
    study = _study(storage, section, name)
    while True:
        running: dict[int, BegunTrial] = {}
        while len(running) < 3 and (trial := study.next(besides=running)) is not None:
            running[trial.number] = trial
        if not running:
            return study.outcomes()
        study = _study(storage, section, name)
        again = [study.next(besides=[*running][:place]) for place in range(len(running))]
        assert again == [*running.values()]
        ended = [*running.values()][ends]
        study.end(ended, _ended(ended))


@pytest.mark.parametrize("sampler", ["grid", "random", "QMCSampler"])
def test_trials_side_by_side_have_the_same_values_in_any_order(sampler: str, storage: RDBStorage) -> None:
    section = _section(sampler)
    alone = _outcomes(storage, section, f"alone-{sampler}")
    for ends in (0, -1):
        assert _side_by_side(storage, section, f"beside-{sampler}-{ends}", ends) == alone


def test_trials_of_tpe_side_by_side_are_all_different(storage: RDBStorage) -> None:
    facts = {"space": SPACE, "trials": 14, "parallel_trials": 3}
    found = _side_by_side(storage, TuningSection.model_validate(facts), "beside-tpe", -1)
    assert [one.number for one in found] == list(range(14))
    assert len({tuple(one.parameters.values()) for one in found}) == 14


def test_tpe_draws_near_good_trials_also_after_a_kill(storage: RDBStorage) -> None:
    """From the eleventh trial on, its draws depend on the trials before."""
    section = _section("tpe", 14)
    assert _outcomes(storage, section, "tpe-killed", frozenset({11, 12})) == _outcomes(
        storage, section, "tpe-whole"
    )


def test_a_range_with_steps_holds_its_steps_alone() -> None:
    """Also those that rounding moves above the end of the range. Other values would be drawn by no sampler."""
    stepped = FloatRange(kind="float", low=0.1, high=0.7, step=0.2)
    assert max(stepped.values() or ()) > 0.7
    assert all(stepped.holds(value) for value in (*(stepped.values() or ()), 0.3, 0.7))
    assert not any(stepped.holds(value) for value in (0.15, 0.69, -0.1, 0.9, True, None, "0.3"))
    assert FloatRange(kind="float", low=0.1, high=0.9).holds(0.15)


def test_keys_may_change_places_in_the_file_of_a_study() -> None:
    """The identity of a study does not hold their order, so neither may its draws nor its grid."""
    section = _section("random", 4)
    turned = {group: dict(reversed(keys.items())) for group, keys in section.space.model_dump().items()}
    same = SpaceSection.model_validate(turned)
    assert list(same.hyperparameters) != list(section.space.hyperparameters)
    assert list(same.dimensions) == list(section.space.dimensions)
    drawn: list[Any] = []
    for space in (section.space, same):
        study = _study(InMemoryStorage(), section.model_copy(update={"space": space}), "order")
        drawn.append([study.next(besides=range(number)) for number in range(4)])
    assert drawn[0] == drawn[1]


def test_more_trials_continue_the_same_study(storage: RDBStorage) -> None:
    few = _outcomes(storage, _section("tpe", 3), "more")
    more = _outcomes(storage, _section("tpe", 5), "more")
    assert more[:3] == few
    assert len(more) == 5
    assert _outcomes(storage, _section("tpe", 3), "more") == more


def test_a_new_study_names_what_changed_since_the_one_before(other_storage: RDBStorage) -> None:
    """Also of a study that still has trials to begin, and for each process that continues the new one.

    A study that does not name its metric, as those of earlier releases, was judged by the validation loss.
    """

    def opened(name: str, **decided_by: str) -> Study:
        facts = dataclasses.replace(FACTS, model="change", decided_by={"sampler": "random"} | decided_by)
        return Study(other_storage, name, _section("random", 3), 7, facts, EPOCHS)

    rate = "{kind: float, low: 0.001, high: 0.1}"
    first = opened("before", partition="2024-01-20", **{"space training.learning_rate": rate})
    assert first.differs == ""
    begun = first.next()
    for _ in range(2):
        wider = {"space training.learning_rate": rate.replace("0.1", "0.5"), "snapshot_digest": "ab" * 32}
        wider |= {"metric": VALIDATION_LOSS}
        assert opened("after", partition="2024-01-20", **wider).differs == (
            "it differs from study before: space training.learning_rate changed from "
            "{kind: float, low: 0.001, high: 0.1} to {kind: float, low: 0.001, high: 0.5}; snapshot_digest is new "
            "(abababababab). That study stays as it is, with 1 of 3 trials, and continues when nothing differs from it"
        )
    again = opened("before", partition="2024-01-20", **{"space training.learning_rate": rate})
    assert (again.differs, again.next()) == ("", begun)


def test_another_seed_draws_other_values(storage: RDBStorage) -> None:
    drawn = [
        Study(storage, f"seed-{seed}", _section("random"), seed, FACTS, EPOCHS).next() for seed in (1, 2)
    ]
    first, second = (one.parameters for one in drawn if one is not None)
    assert first != second


def _pruned(storage: RDBStorage, pruner: str, name: str, killed_at: frozenset[int]) -> list[TrialOutcome]:
    """Run eight trials whose loss grows with their hidden width. At those of `killed_at` the process dies after each
    epoch, and the next one reads all epochs again."""
    facts = {"space": SPACE, "sampler": "random", "pruner": pruner, "trials": 8}
    section = TuningSection.model_validate(facts)
    study = _study(storage, section, name)
    while (trial := study.next()) is not None:
        width = trial.parameters["hyperparameters.hidden"]
        assert isinstance(width, int)
        common: dict[str, Any] = {
            "number": trial.number,
            "parameters": trial.parameters,
            "most_epochs": EPOCHS,
        }
        for last in range(1, EPOCHS + 1):
            if trial.number in killed_at:
                study = _study(storage, section, name)
                assert study.next() == trial
            first = 1 if trial.number in killed_at else last
            if any(study.should_pause(trial, epoch, width / epoch) for epoch in range(first, last + 1)):
                break
        state = "finished" if last == EPOCHS else "paused"
        study.end(trial, TrialOutcome(**common, state=state, validation_loss=width / last, epochs=last))
    return study.outcomes()


@pytest.mark.parametrize(
    "pruner",
    [
        "median",
        "hyperband",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("none", "successive_halving")),
    ],
)
def test_a_pruner_pauses_bad_trials_also_of_a_killed_study(pruner: str, storage: RDBStorage) -> None:
    outcomes = _pruned(storage, pruner, f"{pruner}-whole", frozenset())
    assert _pruned(storage, pruner, f"{pruner}-killed", frozenset({1, 6})) == outcomes
    paused = [one for one in outcomes if one.state == "paused"]
    assert bool(paused) is (pruner != "none")
    best = min(outcomes, key=lambda one: one.parameters["hyperparameters.hidden"] or 0)
    assert best.state == "finished"
    saved, budget = dataclasses.replace(_result(), trials=outcomes).epochs_saved
    assert budget == 8 * EPOCHS
    assert saved == sum(EPOCHS - one.epochs for one in paused)


@pytest.mark.parametrize("pruner", ["median", "successive_halving"])
def test_a_trial_that_dies_while_it_pauses_pauses_again_there(pruner: str) -> None:
    """And reaches no later epoch, though it reads all epochs again. What others reached meanwhile changes nothing."""
    storage = InMemoryStorage()
    facts = {"space": SPACE, "sampler": "random", "pruner": pruner, "trials": 8}
    section = TuningSection.model_validate(facts)
    study = _study(storage, section, pruner)

    def losses_of(trial: BegunTrial) -> list[float]:
        return [(2.0 if trial.number < 6 else 9.0 + trial.number) - 0.01 * at for at in range(EPOCHS)]

    def paused_at(study: Study, trial: BegunTrial) -> int | None:
        losses = losses_of(trial)
        return next((at for at in range(1, EPOCHS) if study.should_pause(trial, at, losses[at - 1])), None)

    for _ in range(7):
        trial = study.next()
        assert trial is not None
        paused = paused_at(study, trial)
        again = _study(storage, section, pruner)
        assert again.next() == trial
        assert paused_at(again, trial) == paused
        common: dict[str, Any] = {"number": trial.number, "parameters": trial.parameters}
        state = "finished" if paused is None else "paused"
        study.end(trial, TrialOutcome(**common, state=state, validation_loss=losses_of(trial)[paused or -1]))
    assert paused is not None


def _failed(trial: BegunTrial, why: str, *, may_pass: bool) -> TrialOutcome:
    return TrialOutcome(
        number=trial.number, parameters=trial.parameters, state="failed", why=why, may_pass=may_pass
    )


def test_a_spent_budget_begins_no_trial(storage: RDBStorage) -> None:
    study = _study(storage, _section("random", 3), "spent")
    begun = study.next()
    assert begun is not None
    assert study.next(may_begin=False) == begun
    study.end(begun, _ended(begun))
    assert study.next(may_begin=False) is None
    again = study.next()
    assert again is not None
    assert again.number == 1


def test_each_launch_repeats_a_failure_that_may_pass_once(storage: RDBStorage) -> None:
    """With its values, as another record of the same number; also after a kill. Other failures are final."""

    def launch() -> Study:
        return _study(storage, _section("random", 3), "repeats")

    study = launch()
    ends: list[BegunTrial] = []
    for why, may_pass in (("Diverged: nan", False), ("OutOfDisk: 1 GB", True), ("OutOfMemory: 2 GB", True)):
        trial = study.next()
        assert trial is not None
        study.end(trial, _failed(trial, why, may_pass=may_pass))
        ends.append(trial)
    assert study.next() is None

    study = launch()
    for before in ends[1:]:
        trial = study.next()
        assert trial is not None
        assert (trial.number, trial.parameters) == (before.number, before.parameters)
        assert trial.failed_before == study.outcomes()[before.number].why
        study = launch()
        assert study.next() == trial
        study.should_pause(trial, 1, 0.5)
        study.end(trial, _failed(trial, "OutOfMemory: 3 GB", may_pass=True))
    study = launch()
    for number in (1, 2):
        trial = study.next()
        assert trial is not None
        assert (trial.number, trial.failed_before) == (number, "OutOfMemory: 3 GB")
        study.end(trial, _ended(trial))
    for again in (study, launch()):
        assert again.next() is None
    outcomes = study.outcomes()
    assert [one.state for one in outcomes] == ["failed", "finished", "finished"]
    assert [one.parameters for one in outcomes] == [one.parameters for one in ends]
    assert outcomes[1].curve == ((1, 0.5),)


def _result(*trials: TrialOutcome) -> StudyResult:
    return StudyResult(
        study="1" * 64,
        name="shop-1",
        model="shop",
        partition="2024-01-20",
        snapshot="2" * 64,
        window=TrainedOn(commit="c", table="features/shop", first="a", last="b", partitions=2),
        seen=Days((("2024-01-01", "2024-01-15"),)),
        sampler="tpe",
        pruner="none",
        trials=trials,
    )


def _finished(number: int, loss: float) -> TrialOutcome:
    parameters = {"training.learning_rate": 0.1 * (number + 1)}
    return TrialOutcome(number=number, parameters=parameters, state="finished", validation_loss=loss)


def test_the_lowest_loss_is_chosen_and_of_equal_ones_the_first() -> None:
    failed = TrialOutcome(number=3, parameters={}, state="failed", why="Diverged")
    result = _result(_finished(0, 0.5), _finished(1, 0.25), _finished(2, 0.25), failed)
    assert result.chosen.number == 1
    assert result.because == (
        "trial 1 has the lowest validation loss, 0.25, of 3 finished trials; next is trial 2 with 0.25; 1 trial "
        "failed: training.learning_rate=0.2"
    )
    assert result.choice.source == result.digest
    assert result.choice.of("training") == {"learning_rate": 0.2}
    again = StudyResult.from_json(result.to_json())
    assert again == result
    assert again.digest == result.digest
    assert _result(_finished(0, 0.5)).digest != result.digest


def test_a_grid_with_fewer_points_than_trials_ends_with_its_points() -> None:
    study = _study(InMemoryStorage(), _section("grid", trials=50), "grid")
    while (trial := study.next()) is not None:
        study.end(trial, _ended(trial))
    assert len(study.outcomes()) == study.most == 6


@pytest.mark.parametrize(("pruner", "first"), [("median", 2), ("successive_halving", 1), ("hyperband", 1)])
def test_no_pruner_pauses_a_trial_in_its_warm_up(pruner: str, first: int) -> None:
    """After it, each pauses the same bad trial at once. Without one, each pauses it as early as its own rule says."""

    def paused_at(warm_from: int | None) -> int | None:
        facts = {"space": SPACE, "sampler": "random", "pruner": pruner, "trials": 20}
        warmup = {} if warm_from is None else {"pruner_warmup": {"epochs": warm_from}}
        section = TuningSection.model_validate(facts | warmup)
        study = _study(InMemoryStorage(), section, "warm-up")
        earliest: list[int] = []
        while (trial := study.next()) is not None:
            loss, at = 1.0 + trial.number, 0
            for at in range(1, EPOCHS + 1):
                if study.should_pause(trial, at, loss, is_warm=at >= (warm_from or 1)):
                    earliest.append(at)
                    break
            common: dict[str, Any] = {"number": trial.number, "parameters": trial.parameters}
            state = "paused" if at < EPOCHS else "finished"
            study.end(trial, TrialOutcome(**common, state=state, validation_loss=loss))
        return min(earliest, default=None)

    assert paused_at(None) == first
    assert paused_at(5) == 5


def test_a_warm_up_in_steps_ends_with_the_epoch_that_reaches_them() -> None:
    warmup = PrunerWarmupSection(steps=500)
    assert [warmup.is_over(epoch, 240 * epoch) for epoch in (1, 2, 3)] == [False, False, True]
    assert PrunerWarmupSection(epochs=2).is_over(2, 1)

"""A study that begins from an earlier result: its best values first, fewer of the others, and draws near the good."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from pydantic import ValidationError

from ml_assets.extras.tuning.prior import Prior, thinned, windows_of
from ml_assets.extras.tuning.study import BegunTrial, Study, StudyFacts, is_begun
from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import PriorSection, SpaceSection, TuningSection
from ml_assets.model.steps.study_result import KnownPoint, StudyResult, TrialOutcome
from resources.addresses import Address
from resources.ledger import TrainedOn
from resources.tracking.studies import open_storage

RATE = "training.learning_rate"
SPACE: dict[str, Any] = {"training": {"learning_rate": {"kind": "float", "low": 0.0, "high": 1.0}}}
BEST = 0.3
FACTS = StudyFacts(model="shop", partition="2024-01-21", snapshot="2" * 64, decided_by={})


def _loss(rate: Any, day: float = 0.0) -> float:
    """Return a loss that is lowest at `BEST`; on another day's rows all losses are higher by `day`."""
    return abs(float(rate) - BEST) + day


WINDOW = TrainedOn(commit="c", table="features/shop", first="a", last="b", partitions=2)
SEEN = Days((("2024-01-01", "2024-01-15"),))
OLDER = dataclasses.replace(WINDOW, commit="b", last="a")


def _result(*rates: float, inherited: tuple[KnownPoint, ...] = ()) -> StudyResult:
    trials = [
        TrialOutcome(number=i, parameters={RATE: rate}, state="finished", validation_loss=_loss(rate))
        for i, rate in enumerate(rates)
    ]
    failed = TrialOutcome(number=len(rates), parameters={RATE: BEST}, state="failed", why="Diverged")
    return StudyResult(
        study="1" * 64,
        name="shop-1",
        model="shop",
        partition="2024-01-20",
        snapshot="2" * 64,
        window=WINDOW,
        seen=SEEN,
        sampler="tpe",
        pruner="none",
        trials=(*trials, failed),
        inherited=inherited,
    )


def _rates(points: tuple[KnownPoint, ...]) -> list[Any]:
    return [one.parameters[RATE] for one in points]


@given(st.integers(1, 500), st.integers(1, 99))
@example(75, 68)
@example(150, 34)
def test_a_share_of_the_points_is_kept_from_the_best_on(count: int, percent: int) -> None:
    """Also where the division rounds up, as 51 / 0.68 does."""
    points = [
        KnownPoint(parameters={}, validation_loss=float(place), window=WINDOW) for place in range(count)
    ]
    kept = [one.validation_loss for one in thinned(points, percent / 100)]
    assert kept[0] == 0
    assert kept == sorted(set(kept))
    assert abs(len(kept) - count * percent / 100) < 1.001


@given(st.floats(0.01, 0.99))
def test_each_study_forgets_some_points_until_the_best_is_left(keep: float) -> None:
    points = [KnownPoint(parameters={}, validation_loss=float(place), window=WINDOW) for place in range(30)]
    while len(points) > 1:
        fewer = thinned(points, keep)
        assert len(fewer) < len(points)
        points = fewer
    assert thinned(points, keep) == points
    assert thinned([], keep) == []


def test_the_prior_holds_points_of_the_space_once_and_ages() -> None:
    space = SpaceSection.model_validate(SPACE)
    older = tuple(
        KnownPoint(parameters={RATE: rate}, validation_loss=_loss(rate), window=OLDER)
        for rate in (0.5, 0.2, 7.0)
    )
    result = _result(0.9, 0.2, 0.31, 0.8, inherited=older)
    prior = Prior.of(result, space, PriorSection(best=1, keep=0.6), {})
    # Best first: 0.31, 0.2, 0.5, 0.8, 0.9; the first, second and fourth are kept. 7.0 lies outside, 0.2 is twice.
    assert (prior.result, _rates(prior.repeated), _rates(prior.seen)) == (result.digest, [0.31], [0.2, 0.8])
    assert prior.days == SEEN
    assert Prior.from_document(prior.to_document()) == prior
    for nothing in (
        Prior.of(None, space, PriorSection(), {}),
        Prior.of(result, space, None, {}),
        Prior.of(_result(7.0), space, PriorSection(), {}),
    ):
        assert nothing == Prior()


def test_points_of_refused_rows_are_left_out_also_inherited_ones() -> None:
    space, section = SpaceSection.model_validate(SPACE), PriorSection(best=1, keep=0.5)
    older = KnownPoint(parameters={RATE: 0.3}, validation_loss=0.0, window=OLDER)
    result = _result(0.5, 0.4, inherited=(older,))
    assert windows_of(result) == [WINDOW, OLDER]
    why = "shop b is late"
    own = Prior.of(result, space, section, {OLDER: why})
    assert _rates(own.repeated) == [0.4]
    assert re.fullmatch(rf"1 point\b.*: {why}", own.left_out)
    inherited = Prior.of(result, space, section, {WINDOW: "shop a is late"})
    assert (inherited.repeated, inherited.seen) == ((older,), ())
    neither = Prior.of(result, space, section, {WINDOW: "one", OLDER: "two"})
    assert neither == Prior(left_out=neither.left_out)
    assert re.fullmatch(r"3 points\b.*: one; two", neither.left_out)
    assert Prior.from_document(neither.to_document()) == neither


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> RDBStorage:
    folder: Path = tmp_path_factory.mktemp("prior")
    return open_storage(Address(f"sqlite:///{folder}/studies.db"))


def _study(storage: RDBStorage, name: str, prior: Prior | None) -> Study:
    section = TuningSection.model_validate({"space": SPACE, "trials": 10, "prior": {}})
    return Study(storage, name, section, 7, FACTS, 9, prior)


def _run(storage: RDBStorage, name: str, prior: Prior | None, *, killed: bool = False) -> Study:
    study = _study(storage, name, prior)
    while (trial := study.next()) is not None:
        if killed:  # by then another result is the newest one
            study = _study(storage, name, None)
            assert study.next() == trial
        loss = _loss(trial.parameters[RATE], day=10.0)
        ended = TrialOutcome(
            number=trial.number, parameters=trial.parameters, state="finished", validation_loss=loss
        )
        study.end(trial, ended)
    return study


def test_a_new_study_repeats_the_best_and_searches_near_it(storage: RDBStorage) -> None:
    yesterday = _result(*(number / 23 for number in range(24)))
    prior = Prior.of(yesterday, SpaceSection.model_validate(SPACE), PriorSection(best=2, keep=0.5), {})
    study = _run(storage, "today", prior)
    outcomes = study.outcomes()
    drawn = [one.parameters[RATE] for one in outcomes]
    assert drawn[:2] == [7 / 23, 6 / 23]
    assert [one.number for one in outcomes] == list(range(10))
    # Without the earlier trials the first ten draws are uniform.
    uniform = [one.parameters[RATE] for one in _run(storage, "nothing", None).outcomes()]
    assert sum(map(_loss, drawn[2:])) < 0.75 * sum(map(_loss, uniform[2:]))
    # The rows of today have another loss: earlier points are moved by the difference of the repeated ones.
    assert study.inherited()[0].validation_loss == pytest.approx(_loss(prior.seen[0].parameters[RATE], 10.0))
    assert _rates(tuple(study.inherited())) == _rates(prior.seen)
    assert _run(storage, "killed", prior, killed=True).outcomes() == outcomes
    result = dataclasses.replace(yesterday, prior=yesterday.digest, inherited=tuple(study.inherited()))
    assert StudyResult.from_json(result.to_json()) == result
    assert {one.window for one in result.inherited} == {WINDOW}


YESTERDAY = _result(*(number / 23 for number in range(24)))


def _begun_from_yesterday(**tuning: Any) -> Study:
    """Return a study in memory that repeats the best point of yesterday and sees 18 others."""
    section = TuningSection.model_validate({"space": SPACE, "trials": 10, "prior": {}, **tuning})
    prior = Prior.of(YESTERDAY, section.space, section.prior, {})
    return Study(InMemoryStorage(), "today", section, 7, FACTS, 27, prior)


def _next(study: Study, *besides: int) -> BegunTrial:
    trial = study.next(besides=besides)
    assert trial is not None
    return trial


def _end(study: Study, trial: BegunTrial, state: Any = "finished", above: float = 10.0) -> None:
    loss = _loss(trial.parameters[RATE], above)
    outcome = TrialOutcome(
        number=trial.number, parameters=trial.parameters, state=state, validation_loss=loss
    )
    study.end(trial, outcome)


def _difference(study: Study) -> float:
    """Return the distance of the inherited losses from those of yesterday."""
    moved = {one.validation_loss - _loss(one.parameters[RATE]) for one in study.inherited()}
    assert max(moved) - min(moved) < 1e-9
    return moved.pop()


def test_earlier_losses_move_when_a_repeated_trial_has_finished() -> None:
    """Also if other trials began while it trained; not if the pruner paused it."""
    study = _begun_from_yesterday(parallel_trials=2)
    repeated, second = _next(study), _next(study, 0)
    assert _difference(study) == 0
    _end(study, second)
    assert _difference(study) == 0
    _end(study, repeated)
    assert _difference(study) == pytest.approx(10)
    halved = _begun_from_yesterday(pruner="successive_halving", parallel_trials=2)
    first, second = _next(halved), _next(halved, 0)
    for epoch in range(1, 4):
        assert not halved.should_pause(second, epoch, 1.0)
    assert any(halved.should_pause(first, epoch, 90.0) for epoch in range(1, 4))
    _end(halved, first, "paused", above=90.0)
    assert _difference(halved) == 0


def test_the_pruner_compares_with_trials_of_this_study_alone() -> None:
    """Points of earlier studies have no learning curves. Median begins after five trials of this study."""
    study = _begun_from_yesterday(pruner="median")
    paused: list[int] = []
    for number in range(7):
        trial = _next(study)
        if any(study.should_pause(trial, epoch, 10.0 + number) for epoch in range(1, 10)):
            paused.append(number)
        _end(study, trial)
    assert paused == [5, 6]
    assert len(study.outcomes()) == 7


def test_a_study_with_its_prior_needs_no_other_one() -> None:
    storage = InMemoryStorage()
    assert not is_begun(storage, "today")
    storage.create_new_study([StudyDirection.MINIMIZE], "today")  # killed before it had its prior
    assert not is_begun(storage, "today")
    section = TuningSection.model_validate({"space": SPACE, "trials": 10, "prior": {}})
    prior = Prior.of(YESTERDAY, section.space, section.prior, {})
    Study(storage, "today", section, 7, FACTS, 9, prior)
    assert is_begun(storage, "today")
    assert Study(storage, "today", section, 7, FACTS, 9).prior == prior


def test_a_grid_takes_no_prior() -> None:
    space = {"training": {"epochs": {"kind": "int", "low": 1, "high": 2}}}
    with pytest.raises(ValidationError, match=r"sampler grid .*remove prior") as refused:
        TuningSection.model_validate({"space": space, "sampler": "grid", "trials": 2, "prior": {}})
    assert [error["loc"] for error in refused.value.errors()] == [("prior",)]

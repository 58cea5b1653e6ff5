"""Days that a model has seen: a year of backfills with studies in it, and an ancestor of another cadence."""

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.cadence import Cadence
from ml_assets.extras.tuning.chosen import StudyChanged, chosen_for, prior_for, results_of, store_result
from ml_assets.extras.tuning.prior import Prior
from ml_assets.foundation.days import Days
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome
from ml_assets_tests.components import readings_pipeline
from resources.ledger import TrainedOn
from resources.platform import Platform
from resources.settings import Settings

MODEL = readings_pipeline.MODEL
WINDOWS: dict[str, dict[str, int]] = {
    "daily": {"train": 10, "validation": 2, "holdout": 6},
    "weekly": {"train": 5, "validation": 2, "holdout": 3},
    "monthly": {"train": 3, "validation": 1, "holdout": 2},
}
TUNING: dict[str, Any] = {
    "space": {"hyperparameters": {"start": {"kind": "categorical", "choices": [0.0, 18.0, 40.0]}}},
    "trials": 3,
    "prior": {},
}


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(Settings(home=tmp_path, author="ada"))


def _spec(kind: str) -> TrainingPipelineSpec:
    changes = {
        "partitions": {"cadence": kind, "start": "2023-01-01"},
        "window": WINDOWS[kind],
        "tuning": TUNING,
    }
    return TrainingPipelineSpec.model_validate(readings_pipeline.PIPELINE | changes)


def _window(spec: TrainingPipelineSpec, key: str) -> list[str]:
    return spec.partitions.as_cadence.window(key, spec.window.total)


def _study(spec: TrainingPipelineSpec, key: str, start: float, name: str = "1") -> StudyResult:
    """Return the result of a study on the window of `key`, which saw what its trials read."""
    window = _window(spec, key)
    trial = TrialOutcome(
        number=0, parameters={"hyperparameters.start": start}, state="finished", validation_loss=1.0
    )
    return StudyResult(
        study=name * 64,
        name=f"{spec.name}-{name}",
        model=spec.name,
        partition=key,
        snapshot="2" * 64,
        window=TrainedOn(
            commit=name * 8, table="features/shifts", first=window[0], last=key, partitions=len(window)
        ),
        seen=spec.days_of(window[: -spec.window.holdout]),
        sampler="tpe",
        pruner="none",
        trials=(trial,),
    )


def _year(spec: TrainingPipelineSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield the partitions of a year with their windows, all of them whole."""
    for key in spec.partitions.as_cadence.keys(date(2024, 1, 1), date(2024, 12, 31)):
        yield key, _window(spec, key)


@pytest.mark.parametrize("kind", WINDOWS)
def test_no_backfill_takes_values_of_a_study_that_saw_its_holdout(platform: Platform, kind: str) -> None:
    """A year with a study in its middle and one at its end: 0 holdouts that the study of their values had seen.

    Each past partition takes the newest study before its holdout, and the declared values if there is none.
    """
    spec = _spec(kind)
    cadence = spec.partitions.as_cadence
    middle = _study(spec, cadence.key_of(date(2024, 6, 24)), 0.0)
    end = _study(spec, cadence.key_of(date(2024, 12, 20)), 40.0, "3")
    for result in (middle, end):
        store_result(platform, result, "<html>")
    taken: dict[str, list[str]] = {"": [], middle.digest: [], end.digest: []}
    seen_holdouts = 0
    for key, window in _year(spec):
        chosen = chosen_for(spec, platform, window)
        assert chosen is not None
        seen_holdouts += bool(chosen.seen & spec.holdout_of(window))
        seen_holdouts += chosen.seen.reaches(spec.holdout_of(window))
        taken[chosen.choice.source if chosen.choice else ""].append(key)
        assert (chosen.choice is None) == chosen.says.startswith("the declared values are used: no study saw")
    assert seen_holdouts == 0
    assert all(taken.values())
    assert taken[middle.digest][0] == middle.partition
    assert taken[end.digest][0] == end.partition
    assert max(taken[""]) < middle.partition <= max(taken[middle.digest]) < end.partition


def test_a_search_does_not_begin_from_a_study_that_saw_its_holdout(platform: Platform) -> None:
    """Rejected days move the newest window back: the newest result is then one of later rows."""
    spec = _spec("daily")
    tuning = spec.tuning
    assert tuning is not None
    older, newer = _study(spec, "2024-06-01", 0.0), _study(spec, "2024-06-24", 40.0, "3")
    for result in (older, newer):
        store_result(platform, result, "<html>")
    for key, commit in (("2024-06-20", "1" * 8), ("2024-06-24", "3" * 8)):
        begun = prior_for(spec, tuning, platform, _window(spec, key))
        # The rows of both are gone, so the reason names the result from which the search would begin.
        assert begun.left_out == (
            f"1 point of earlier studies left out: the lake no longer holds features/shifts at commit {commit}, "
            "which it was trained on"
        )
    assert prior_for(spec, tuning, platform, _window(spec, "2024-05-25")) == Prior()


@pytest.mark.parametrize("change", ["loss", "seen", "half"])
def test_a_result_that_was_changed_on_disk_chooses_nothing(platform: Platform, change: str) -> None:
    """Its values, or the days that it has seen: a list with fewer days would let it choose for its own holdout."""
    spec = _spec("daily")
    result = _study(spec, "2024-06-24", 0.0)
    folder = platform.artifacts.folder(store_result(platform, result, "<html>"))
    file = folder.parent / "results.json" if change == "seen" else folder / "study.json"
    text = file.read_text()
    changed = {
        "loss": text.replace('"hyperparameters.start": 0.0', '"hyperparameters.start": 40.0'),
        "seen": text.replace("2024-06-18", "2024-06-17"),
        "half": text[: len(text) // 2],
    }[change]
    assert changed != text
    file.write_text(changed)
    window = _window(spec, "2024-07-24")
    with pytest.raises(StudyChanged, match="ml-assets launch throughput/hyperparameters"):
        chosen_for(spec, platform, window)
    assert spec.tuning is not None
    with pytest.raises(StudyChanged):
        prior_for(spec, spec.tuning, platform, window)
    file.write_text(text)
    chosen = chosen_for(spec, platform, window)
    assert chosen is not None
    assert chosen.result == result


def test_a_study_that_is_launched_again_is_the_newest_again(platform: Platform) -> None:
    """A person who takes back a change of the space launches the study again, which has nothing left to train."""
    spec = _spec("daily")
    first, second = _study(spec, "2024-06-24", 0.0), _study(spec, "2024-06-24", 40.0, "3")
    for result in (first, second, first):
        store_result(platform, result, "<html>")
    chosen = chosen_for(spec, platform, _window(spec, "2024-06-24"))
    assert chosen is not None
    assert chosen.choice == first.choice
    assert [one.name for one in results_of(platform, MODEL)] == [first.digest[:12], second.digest[:12]]


def _keys_seen(seen: Days, cadence: Cadence, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if seen & Days.of([cadence.bounds(key)])]


def test_a_monthly_ancestor_has_seen_each_day_of_its_months() -> None:
    """As text, the key of a month is its first day alone."""
    monthly, daily = Cadence("monthly", date(2024, 1, 1)), Cadence("daily", date(2024, 1, 1))
    seen = Days.of(monthly.bounds(key) for key in ("2024-03-01", "2024-04-01"))
    holdout = daily.keys(date(2024, 4, 28), date(2024, 5, 3))
    assert _keys_seen(seen, daily, holdout) == ["2024-04-28", "2024-04-29", "2024-04-30"]

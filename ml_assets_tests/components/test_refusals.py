"""A model is never trained on inputs that are missing, rejected or too few; it says which, before any launch."""

from typing import Any

import dagster as dg
import polars as pl
import pytest

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient, missing_in
from ml_assets_tests.components.plant import FEATURES, MODEL, PIPELINE, READINGS, WINDOW, Source, days
from ml_assets_tests.components.world import World, failure_metadata, failure_of, plant_components
from resources.lake import LakeBusy

FIRST, LAST = days(WINDOW, start=1)[0], days(WINDOW, start=1)[-1]


@pytest.fixture
def ready(world: World) -> World:
    """Readings and features for the whole window."""
    world.run(READINGS, partition=days(1)[0], last=LAST)
    assert world.run(FEATURES, partition=FIRST, last=LAST).success
    return world


def _steps(result: Any) -> list[str]:
    return [event.step_key for event in result.all_events if event.is_step_start]


@pytest.mark.parametrize("interruption", [dg.DagsterExecutionInterruptedError, KeyboardInterrupt])
@pytest.mark.parametrize("ending_fails", [False, True])
def test_a_terminated_step_is_not_tried_again_even_where_ending_it_failed(
    interruption: type[BaseException], ending_fails: bool
) -> None:
    attempts: list[int] = []

    @dg.op(retry_policy=RETRY_TRANSIENT)
    def train(context: dg.OpExecutionContext) -> None:
        with final_unless_transient():
            attempts.append(1)
            context.instance.report_run_canceling(context.run)  # as the page's button does first
            try:
                raise interruption
            finally:
                if ending_fails:
                    raise LakeBusy("somebody else writes")

    @dg.job
    def one_step() -> None:
        train()

    with dg.instance_for_test() as instance:
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            one_step.execute_in_process(instance=instance)
        (run,) = instance.get_runs()
    assert attempts == [1]
    assert run.status == dg.DagsterRunStatus.CANCELED


def test_missing_partitions_are_refused_by_name_before_anything_is_launched(world: World) -> None:
    present = days(WINDOW, start=1)[:-2]
    world.run(READINGS, partition=days(1)[0], last=present[-1])
    world.run(FEATURES, partition=present[0], last=present[-1])
    result = world.train(LAST)
    lacking = days(WINDOW, start=1)[-2:]
    said = failure_of(result)
    assert said.startswith(f"{MODEL} {LAST} refuses to build on unusable inputs: ")
    assert all(f"{FEATURES} {key} (is missing)" in said for key in lacking)
    assert missing_in(failure_metadata(result)) == {FEATURES: lacking}
    assert _steps(result) == [f"{MODEL}.validate_inputs"]


def test_a_rejected_partition_is_refused_with_its_reason_though_main_holds_an_older_one(
    ready: World, source: Source
) -> None:
    day = days(WINDOW, start=1)[3]
    source.spoiled[day] = lambda rows: rows.with_columns(pl.col("made") * 100)
    assert ready.run(READINGS, partition=day).success
    assert not ready.run(FEATURES, partition=day).success
    assert day in ready.main.keys(FEATURES)
    result = ready.train(LAST)
    assert f"{FEATURES} {day} (is rejected: out_of_range in made" in failure_of(result)
    assert missing_in(failure_metadata(result)) == {}


def test_a_window_longer_than_the_table_is_refused_with_the_arithmetic(ready: World) -> None:
    result = ready.train(days(WINDOW)[-2])
    assert failure_of(result) == (
        f"{MODEL} {days(WINDOW)[-2]} needs 18 partitions of {FEATURES} (train 10, validation 2, holdout 6), but "
        "the table begins only 17 partitions before that: choose a later partition or a shorter window"
    )


def test_stale_inputs_are_refused_where_the_pipeline_says_so(ready: World, source: Source) -> None:
    changed, after = days(WINDOW, start=1)[3:5]
    source.spoiled[changed] = lambda rows: rows.with_columns(pl.col("made") + 1)
    assert ready.run(READINGS, partition=changed).success
    strict = ready.declared_as(plant_components(pipeline={"stale": "refuse"}))
    said = failure_of(strict.train(LAST))
    for key in (changed, after):
        assert f"{FEATURES} {key} (is stale: {READINGS} {changed} changed)" in said


def test_numbers_under_a_binary_objective_are_refused_by_row_before_anything_is_launched(
    ready: World,
) -> None:
    gate = {"name": "ranks", "metric": "auc", "better_than": "baseline"}
    judged = PIPELINE["evaluation"] | {"objective": "binary", "gates": [gate]}
    result = ready.declared_as(plant_components(pipeline={"evaluation": judged})).train(LAST)
    said = failure_of(result)
    assert f"label 'made' is neither 0 nor 1 in {WINDOW * 48} of {WINDOW * 48} rows: at={FIRST} 06:00" in said
    assert "machine=drill has " in said
    assert _steps(result) == [f"{MODEL}.validate_inputs", f"{MODEL}.snapshot"]


def test_a_lake_that_is_busy_is_asked_again(world: World) -> None:
    world.platform.__dict__["lake"] = _BusyOnce(world.platform.lake)
    result = world.train(LAST)
    assert "refuses to build on unusable inputs" in failure_of(result)
    assert [event.step_key for event in result.all_events if event.is_step_up_for_retry] == [
        f"{MODEL}.validate_inputs"
    ]


class _BusyOnce:
    """A real lake whose first answer is that somebody else holds it."""

    def __init__(self, lake: Any) -> None:
        self._lake = lake
        self._was_busy = False

    def __getattr__(self, name: str) -> Any:
        if not self._was_busy:
            self._was_busy = True
            raise LakeBusy("another process is writing")
        return getattr(self._lake, name)

"""Sensors: a refused run gets its missing chain requested, a source is asked for its latest day."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets.components import Dataset
from ml_assets.components.metadata import ASKED_BY, PARTITION, RANGE_END, RANGE_START, declared_tables
from ml_assets.components.sensors.ended_runs import build_missing_upstream
from ml_assets.data.tables.user_code import LatestMisdeclared
from ml_assets_tests.components.clock import clock_ahead
from ml_assets_tests.components.installation import (
    STAGES,
    Installation,
    component,
    failure_of,
    key_of,
    readings_components,
)
from ml_assets_tests.components.readings_pipeline import (
    DATASET,
    FEATURES,
    FIRST,
    MODEL,
    READINGS,
    WINDOW,
    Source,
    days,
)

WINDOW_DAYS = days(WINDOW, start=1)
"""The window of the model at its last day; its first day needs readings of the day before."""
LAST_DAY = WINDOW_DAYS[-1]


def _tell_of_failure(installation: Installation, result: ExecuteInProcessResult) -> str:
    """Evaluate the failed-upstream sensor on a failed run; its reason."""
    context = dg.build_run_status_sensor_context(
        sensor_name="build_missing_upstream",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=installation.instance,
        dagster_run=result.dagster_run,
        resources={"platform": installation.platform, "tables": declared_tables(installation.defs)},
        repository_def=installation.defs.get_repository_def(),
        partition_key=None,
    ).for_run_failure()
    answer = build_missing_upstream(context)
    assert isinstance(answer, dg.SkipReason)
    return answer.skip_message or ""


def _contents(installation: Installation, backfill: PartitionBackfill) -> dict[str, list[str]]:
    """Asset → partitions of a backfill, sorted."""
    graph = installation.defs.resolve_asset_graph()
    subset = backfill.asset_backfill_data
    assert subset is not None
    found: dict[str, list[str]] = {}
    wanted: set[AssetKeyPartitionKey] = set(subset.target_subset.iterate_asset_partitions())
    for key in graph.toposorted_asset_keys:
        keys = sorted(each.partition_key or "" for each in wanted if each.asset_key == key)
        if keys:
            found[key.to_user_string()] = keys
    return found


def test_a_run_refused_for_missing_inputs_gets_one_backfill_of_them(
    installation: Installation,
) -> None:
    refused = installation.train(LAST_DAY)
    assert "requested backfill" in _tell_of_failure(installation, refused)
    (backfill,) = installation.instance.get_backfills()
    assert backfill.tags[ASKED_BY] == refused.run_id
    assert _contents(installation, backfill) == {
        READINGS: days(WINDOW + 1),
        FEATURES: WINDOW_DAYS,
        **{stage: [LAST_DAY] for stage in STAGES},
    }


def test_what_exists_is_not_requested_again(installation: Installation) -> None:
    installation.run(READINGS, partition=days(1)[0], last=LAST_DAY)
    installation.run(FEATURES, partition=WINDOW_DAYS[0], last=WINDOW_DAYS[-3])
    _tell_of_failure(installation, installation.train(LAST_DAY))
    (backfill,) = installation.instance.get_backfills()
    assert _contents(installation, backfill) == {
        FEATURES: WINDOW_DAYS[-2:],
        **{stage: [LAST_DAY] for stage in STAGES},
    }


def test_the_refused_run_of_a_job_gets_the_rest_of_its_chain_requested(installation: Installation) -> None:
    refused = installation.run_job(LAST_DAY)
    assert f"{READINGS} {days(WINDOW)[-1]} is missing" in failure_of(refused)
    _tell_of_failure(installation, refused)
    (backfill,) = installation.instance.get_backfills()
    assert _contents(installation, backfill) == {
        READINGS: days(WINDOW),  # those of the last day came with the refused run
        FEATURES: WINDOW_DAYS,
        **{stage: [LAST_DAY] for stage in STAGES},
    }


def test_days_that_the_table_cannot_have_are_named_and_not_requested(installation: Installation) -> None:
    last = days(10)[-1]
    ended = installation.declared_as(
        readings_components(dataset={"partitions": DATASET["partitions"] | {"end": last}})
    )
    refused = ended.train(LAST_DAY)
    beyond = days(11)[-1]
    assert (
        f"{READINGS} {beyond} (is missing ({beyond}: partitions end with {last}, at the table's end))"
        in failure_of(refused)
    )
    _tell_of_failure(ended, refused)
    (backfill,) = ended.instance.get_backfills()
    contents = _contents(ended, backfill)
    assert contents[READINGS] == days(10)
    assert contents[FEATURES] == WINDOW_DAYS[:9]


def test_evaluated_twice_the_sensor_adds_nothing(installation: Installation) -> None:
    refused = installation.train(LAST_DAY)
    _tell_of_failure(installation, refused)
    assert _tell_of_failure(installation, refused) == f"already requested as backfill for-{refused.run_id}"
    assert len(installation.instance.get_backfills()) == 1


def test_other_failures_and_its_own_runs_are_left_alone(installation: Installation, source: Source) -> None:
    (day,) = days(1)
    source.spoiled[day] = lambda rows: rows.drop("load")
    rejected = installation.run(READINGS, partition=day)
    assert _tell_of_failure(installation, rejected) == "the run failed for another reason than missing inputs"
    own = installation.run(*STAGES, partition=LAST_DAY, **{ASKED_BY: "an earlier run"})
    assert _tell_of_failure(installation, own) == "this sensor requested the run itself"
    assert installation.instance.get_backfills() == []


def test_a_refused_range_of_features_gets_its_inputs(installation: Installation) -> None:
    first, second, third = days(3)
    installation.run(READINGS, partition=first)
    refused = installation.run(FEATURES, partition=first, last=third)
    _tell_of_failure(installation, refused)
    (backfill,) = installation.instance.get_backfills()
    assert _contents(installation, backfill)[READINGS] == [second, third]


def _ask_for_news(installation: Installation, cursor: str | None = None) -> dg.SensorResult:
    sensor = installation.defs.get_repository_def().get_sensor_def("readings_new_data")
    resources = {"platform": installation.platform, "tables": declared_tables(installation.defs)}
    context = dg.build_sensor_context(instance=installation.instance, resources=resources, cursor=cursor)
    answer: Any = sensor(context)
    return answer


def _ranges(asked: dg.SensorResult) -> list[tuple[str, str]]:
    return [(one.tags[RANGE_START], one.tags[RANGE_END]) for one in asked.run_requests or ()]


def _ask_an_hour_later(installation: Installation, cursor: str | None, hours: int = 1) -> dg.SensorResult:
    """Ask when `retry_seconds` have passed `hours` times since now."""
    with clock_ahead(timedelta(hours=hours)):
        return _ask_for_news(installation, cursor)


def test_new_days_of_a_source_are_requested_as_one_range(installation: Installation, source: Source) -> None:
    source.latest = FIRST + timedelta(2)
    first, _, third = days(3)
    assert _ranges(_ask_for_news(installation)) == [(first, third)]

    assert installation.run(READINGS, partition=first, last=third).success
    nothing = _ask_for_news(installation)
    assert nothing.skip_reason is not None
    said = nothing.skip_reason.skip_message or ""
    assert said.startswith(f"{READINGS} is complete up to {third}; the latest day of the source is {third}")

    source.latest += timedelta(1)
    fourth = source.latest.isoformat()
    assert _ranges(_ask_for_news(installation, nothing.cursor)) == [(fourth, fourth)]


def test_failed_and_rejected_days_are_requested_again_after_a_while(
    installation: Installation, source: Source
) -> None:
    source.latest = FIRST + timedelta(4)
    first, second, _, fourth, fifth = days(5)

    def away(rows: pl.DataFrame) -> pl.DataFrame:
        raise ConnectionError("the source does not answer")

    asked = _ask_for_news(installation)
    source.spoiled = {second: away, fourth: lambda rows: rows.drop("load")}
    installation.run(READINGS, partition=first, last=fifth)
    soon = _ask_for_news(installation, asked.cursor)
    assert not soon.run_requests
    assert soon.skip_reason is not None
    assert f"after the last request for {READINGS} {second}, {fourth}" in (
        soon.skip_reason.skip_message or ""
    )
    later = _ask_an_hour_later(installation, soon.cursor)
    assert _ranges(later) == [(second, second), (fourth, fourth)]
    assert not _ask_an_hour_later(installation, later.cursor).run_requests
    waits = installation.instance.create_run_for_job(
        installation.defs.resolve_implicit_global_asset_job_def(),
        status=dg.DagsterRunStatus.STARTED,
        tags={RANGE_START: first, RANGE_END: second},
        asset_selection=frozenset({key_of(READINGS)}),
    )
    busy = _ask_an_hour_later(installation, later.cursor, hours=2)
    assert _ranges(busy) == [(fourth, fourth)], "a run in progress makes the second day"
    installation.instance.report_run_canceled(waits)
    assert _ranges(_ask_an_hour_later(installation, busy.cursor, hours=2)) == [(second, second)]

    source.mend()
    source.latest = FIRST + timedelta(4)
    for day in (second, fourth):
        assert installation.run(READINGS, partition=day, last=day).success
    assert not _ask_an_hour_later(installation, later.cursor, hours=2).run_requests


def test_a_table_that_was_daily_asks_for_its_weeks(installation: Installation, source: Source) -> None:
    """A Monday's day has the key of its week, and is none."""
    first, *_, last = days(14)
    assert installation.run(READINGS, partition=first, last=last).success
    weekly = {"cadence": "weekly", "start": FIRST.isoformat()}
    installation = installation.declared_as([component(Dataset, DATASET, partitions=weekly)])
    source.latest = date(2024, 1, 14)
    (request,) = _ask_for_news(installation).run_requests or []
    assert (request.tags[RANGE_START], request.tags[RANGE_END]) == (first, days(8)[7])


def test_a_week_is_requested_once_its_source_is_done_with_its_sunday(
    installation: Installation, source: Source
) -> None:
    weekly = {"cadence": "weekly", "start": FIRST.isoformat()}
    installation = installation.declared_as([component(Dataset, DATASET, partitions=weekly)])
    source.latest = date(2024, 1, 13)
    assert _ranges(_ask_for_news(installation)) == [("2024-01-01", "2024-01-01")]
    source.latest = date(2024, 1, 14)
    assert _ranges(_ask_for_news(installation)) == [("2024-01-01", "2024-01-08")]


def test_a_source_that_names_a_moment_or_nothing_is_told_what_to_return(
    installation: Installation, source: Source
) -> None:
    for wrong in (datetime(2024, 1, 5, 13, tzinfo=UTC), None):
        source.latest = wrong  # pyright: ignore[reportAttributeAccessIssue]
        for ask in (_ask_for_news, _tick):
            with pytest.raises(
                LatestMisdeclared, match=r"readings_pipeline\.latest\(\) returned .*: return a datetime\.date"
            ):
                ask(installation)


def _tick(installation: Installation) -> dg.RunRequest | dg.SkipReason:
    schedule = installation.defs.get_repository_def().get_schedule_def(f"train_{MODEL}_schedule")
    answer: Any = schedule(dg.build_schedule_context(instance=installation.instance))
    return answer


def test_the_nightly_tick_trains_the_sources_latest_day_once(
    installation: Installation, source: Source, tmp_path: Path
) -> None:
    installation.instance = dg.DagsterInstance.local_temp(
        str(tmp_path)
    )  # a schedule opens its instance by reference
    source.latest = date(2024, 2, 1)
    request = _tick(installation)
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == "2024-02-01"

    trains = installation.instance.create_run_for_job(
        installation.defs.resolve_job_def(f"train_{MODEL}"),
        status=dg.DagsterRunStatus.STARTED,
        tags={PARTITION: "2024-02-01"},
    )
    meanwhile = _tick(installation)
    assert isinstance(meanwhile, dg.SkipReason)
    assert "being trained by a run of an earlier tick" in (meanwhile.skip_message or "")
    installation.instance.report_run_canceled(trains)
    assert isinstance(_tick(installation), dg.RunRequest)

    installation.instance.report_runless_asset_event(
        dg.AssetMaterialization(key_of(f"{MODEL}/evaluation"), partition="2024-02-01")
    )
    nothing = _tick(installation)
    assert isinstance(nothing, dg.SkipReason)
    assert "throughput 2024-02-01 is trained" in (nothing.skip_message or "")

    source.latest = FIRST - timedelta(1)
    early = _tick(installation)
    assert isinstance(early, dg.SkipReason)
    assert "before the first partition" in (early.skip_message or "")


def test_features_are_requested_only_once_all_of_the_inputs_checks_passed(
    installation: Installation, source: Source
) -> None:
    *_, three_before, _, _, newest = days(91)
    features = key_of(FEATURES)
    cursor = dg.evaluate_automation_conditions(defs=installation.defs, instance=installation.instance).cursor
    source.spoiled[three_before] = lambda rows: rows.drop("load")
    installation.run(READINGS, partition=three_before, last=newest)
    held = dg.evaluate_automation_conditions(
        defs=installation.defs, instance=installation.instance, cursor=cursor
    )
    assert held.get_num_requested(features) == 0

    source.mend()
    installation.run(READINGS, partition=three_before)
    asked = dg.evaluate_automation_conditions(
        defs=installation.defs, instance=installation.instance, cursor=held.cursor
    )
    assert asked.get_requested_partitions(features) == {newest}


def test_a_warning_about_an_input_does_not_hold_its_features_back(
    installation: Installation, source: Source
) -> None:
    installation = installation.declared_as(readings_components(dataset={"volume": {"kind": "previous"}}))
    *_, before, newest = days(91)
    cursor = dg.evaluate_automation_conditions(defs=installation.defs, instance=installation.instance).cursor
    source.spoiled[newest] = lambda rows: rows.head(34)
    installation.run(READINGS, partition=before, last=newest)
    asked = dg.evaluate_automation_conditions(
        defs=installation.defs, instance=installation.instance, cursor=cursor
    )
    assert asked.get_requested_partitions(key_of(FEATURES)) == {newest}

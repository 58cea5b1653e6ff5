"""The leakage test by itself: requested weekly and on changes, its result on the table's page, no part of builds."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult
from dagster._core.loader import LoadingContextForTest

from ml_assets.components.base import SpecComponent
from ml_assets.components.checks import leakage as leakage_check
from ml_assets_tests.components.clock import clock_ahead
from ml_assets_tests.components.installation import QUIET, Installation, key_of, readings_components
from ml_assets_tests.components.readings_pipeline import FEATURE_TABLE, FEATURES, READINGS, WINDOW, days

CHECK = dg.AssetCheckKey(key_of(FEATURES), leakage_check.LEAKAGE)
(LATER,) = days(1, start=WINDOW + 1)
"""The day after those that the tables of the readings begin with."""


def _evaluate(installation: Installation) -> SensorExecutionData:
    """Evaluate the sensor as the daemon does, which keeps its cursor."""
    sensor = leakage_check.request_leakage_tests
    with dg.build_sensor_context(
        instance=installation.instance,
        definitions=dg.Definitions.merge(installation.defs, dg.Definitions(sensors=[sensor])),
        resources={"platform": installation.platform},
        cursor=installation.cursors.get(sensor.name),
    ) as context:
        answer = sensor.evaluate_tick(context)
    installation.cursors[sensor.name] = answer.cursor
    return answer


def _tick(installation: Installation) -> Sequence[dg.RunRequest]:
    """Return what a tick of the sensor requests."""
    return _evaluate(installation).run_requests or []


def _run(installation: Installation, request: dg.RunRequest) -> ExecuteInProcessResult:
    """Execute what was requested."""
    assert list(request.asset_selection or ()) == []
    assert request.asset_check_keys
    job = installation.defs.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(), asset_check_selection=set(request.asset_check_keys)
    )
    return job.execute_in_process(run_config=QUIET, instance=installation.instance)


def _results(result: ExecuteInProcessResult) -> list[dg.AssetCheckEvaluation]:
    assert result.success
    return [one for one in result.get_asset_check_evaluations() if one.check_name == leakage_check.LEAKAGE]


def _repeat_results(installation: Installation) -> int:
    """Evaluate the sensor and report what it repeats, as the daemon does; the number of repeated results."""
    events = _evaluate(installation).asset_events
    for event in events:
        installation.instance.report_runless_asset_event(event)
    return len(events)


def _shown(installation: Installation) -> str | None:
    """Return the description of the check's result that Dagster's page of the table shows."""
    instance = installation.instance
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key([CHECK])[CHECK]
    is_current = asyncio.run(newest.targets_latest_materialization(LoadingContextForTest(instance)))
    result = newest.evaluation
    return result.description if is_current and isinstance(result, dg.AssetCheckEvaluation) else None


def _declared(**changes: Any) -> list[SpecComponent]:
    return readings_components(features=changes)


def test_the_test_runs_by_itself_and_builds_repeat_its_result(installation: Installation) -> None:
    assert _tick(installation) == []  # nothing to test
    installation.with_tables(1)
    page = dg.AssetCheckKey(key_of(FEATURES), leakage_check.LEAKAGE)
    assert leakage_check.newest_result(installation.instance, page) is None  # the build tested nothing

    (request,) = _tick(installation)
    (result,) = _results(_run(installation, request))
    assert result.passed
    assert result.description is not None
    assert "no leak: " in result.description
    assert "lookback suffices: " in result.description
    assert result.metadata["partitions"].value == f"{days(1)[0]} to {days(WINDOW + 1)[-1]} ({WINDOW + 1})"
    assert _tick(installation) == []

    for table in (READINGS, FEATURES):
        built = installation.run(table, partition=LATER)
    (repeated,) = _results(built)
    assert (repeated.passed, repeated.description) == (True, result.description)
    assert repeated.metadata["tested"] == result.metadata["tested"]
    assert _tick(installation) == []

    # A person reports the check as passed by hand: that tested nothing.
    installation.instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(asset_key=key_of(FEATURES), check_name=leakage_check.LEAKAGE, passed=True)
    )
    assert _tick(installation) == []
    (repeated,) = _results(installation.run(FEATURES, partition=LATER))
    assert repeated.description == result.description

    # Another declaration: what was tested is not this.
    inputs = [FEATURE_TABLE["inputs"][0] | {"lookback": 0}]
    short = installation.declared_as(_declared(inputs=inputs))
    (changed,) = _tick(short)
    assert changed.run_key != request.run_key
    assert _results(short.run(FEATURES, partition=LATER)) == []  # no result of the earlier declaration
    (failed,) = _results(_run(short, changed))
    assert not failed.passed
    assert failed.severity == dg.AssetCheckSeverity.ERROR
    assert "lookback is too short: made_yesterday of " in (failed.description or "")
    assert _tick(short) == []

    with clock_ahead(timedelta(days=7)):
        assert len(_tick(short)) == 1
        assert _tick(short) == [], "a test that failed is requested again a week later"
    with clock_ahead(timedelta(days=14)):
        assert len(_tick(short)) == 1


def test_a_result_that_a_build_overtook_is_shown_all_the_same(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build begins and ends while the test runs, so it has no result to repeat."""
    installation.with_tables(1)
    installation.run(READINGS, partition=LATER)
    (request,) = _tick(installation)
    find_leaks = leakage_check.find_leaks

    def overtaken(*arguments: Any) -> Any:
        assert _results(installation.run(FEATURES, partition=LATER)) == []
        assert _repeat_results(installation) == 0  # the test still runs
        return find_leaks(*arguments)

    monkeypatch.setattr(leakage_check, "find_leaks", overtaken)
    (result,) = _results(_run(installation, request))
    assert _shown(installation) is None

    assert _repeat_results(installation) == 1
    assert _shown(installation) == result.description
    assert _repeat_results(installation) == 0
    assert _tick(installation) == []

    # Once more within a second, which is all that SQLite keeps of a check's time.
    @dg.asset(key=key_of(FEATURES))
    def built_without_its_check() -> None: ...

    assert dg.materialize([built_without_its_check], instance=installation.instance).success
    assert _shown(installation) is None
    assert _repeat_results(installation) == 1
    assert _shown(installation) == result.description


def test_what_cannot_be_tested_is_a_warning_with_the_remedy(installation: Installation) -> None:
    installation.with_tables(1)
    untold = installation.declared_as(_declared(inputs=[{"table": READINGS, "lookback": 1}]))
    (request,) = _tick(untold)
    (result,) = _results(_run(untold, request))
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (result.description or "").startswith(
        f"cannot be tested: {READINGS} declares no `known_at`, so the test cannot hide its facts: add `known_at: "
    )


@pytest.mark.parametrize("off", ["off", False])
def test_off_leaves_the_check_out(installation: Installation, off: object) -> None:
    graph = installation.declared_as(_declared(leakage_check=off)).defs.resolve_asset_graph()
    assert CHECK not in graph.asset_check_keys
    assert CHECK in installation.defs.resolve_asset_graph().asset_check_keys

"""Lines about runs, as `ml-assets ui` prints them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from ml_assets.context.news import RunNews

DAYS = dg.DailyPartitionsDefinition("2024-01-01")


@dg.asset(key=["datasets", "sales"], partitions_def=DAYS)
def _sales() -> None:
    pass


@dg.asset(key=["datasets", "broken"])
def _broken() -> None:
    raise dg.Failure("datasets/broken: 3 rows break a rule: mend the source", allow_retries=False)


@dg.asset(key=["shop", "registered_model"])
def _registered() -> Any:
    return dg.MaterializeResult(metadata={"version": 7})


@dg.asset_check(asset=_sales, name="leakage")
def _leakage() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def _run(instance: dg.DagsterInstance, asset: dg.AssetsDefinition, partition: str | None = None) -> None:
    job = dg.Definitions([asset]).resolve_implicit_global_asset_job_def()
    job.execute_in_process(
        instance=instance, raise_on_error=False, partition_key=partition, asset_selection=[asset.key]
    )


def _without_times(news: RunNews) -> list[str]:
    return [line.partition("  ")[2] for line in news.lines()]


def test_each_run_and_version_is_told_once(instance: dg.DagsterInstance) -> None:
    _run(instance, _sales, "2024-01-02")
    news = RunNews(instance, datetime.now(UTC))
    assert _without_times(news) == []  # it was before
    _run(instance, _sales, "2024-01-03")
    assert _without_times(news) == ["done       datasets/sales 2024-01-03"]
    assert _without_times(news) == []
    _run(instance, _broken)
    _run(instance, _registered)
    assert _without_times(news) == [
        "failed     datasets/broken: 3 rows break a rule: mend the source",
        "done       shop",
        "registered shop version 7",
    ]
    assert _without_times(news) == []


def test_a_run_of_a_check_alone_is_told_by_its_name(instance: dg.DagsterInstance) -> None:
    """The weekly leakage tests began with `started    __ASSET_JOB`."""
    job = dg.Definitions([_sales], asset_checks=[_leakage]).resolve_implicit_global_asset_job_def()
    news = RunNews(instance, datetime.now(UTC))
    checks = frozenset(_leakage.check_keys)
    run = dg.DagsterRun(job_name=job.name, asset_selection=frozenset(), asset_check_selection=checks)
    instance.add_run(run)
    instance.report_run_canceled(run)
    assert _without_times(news) == ["canceled   leakage of datasets/sales"]


def test_a_run_is_told_when_it_starts_and_when_it_ends(instance: dg.DagsterInstance) -> None:
    job = dg.Definitions([_sales]).resolve_implicit_global_asset_job_def()
    news = RunNews(instance, datetime.now(UTC))
    range_tags = {
        "dagster/asset_partition_range_start": "2024-01-02",
        "dagster/asset_partition_range_end": "2024-01-05",
    }
    run = instance.create_run_for_job(job, tags=range_tags, asset_selection=frozenset({_sales.key}))
    assert _without_times(news) == []
    instance.report_dagster_event(
        dg.DagsterEvent(event_type_value="PIPELINE_START", job_name=run.job_name), run.run_id
    )
    assert _without_times(news) == ["started    datasets/sales 2024-01-02..2024-01-05"]
    instance.report_run_canceled(run)
    assert _without_times(news) == ["canceled   datasets/sales 2024-01-02..2024-01-05"]

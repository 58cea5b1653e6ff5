"""Definitions of two groups of assets for tests of the proxy: `flights` and `trains`, each with a job."""

import time

import dagster as dg

_DAYS = dg.StaticPartitionsDefinition(["monday", "tuesday"])


@dg.asset(group_name="flights", partitions_def=_DAYS)
def departures() -> None:
    """Partitioned asset of the first group."""


@dg.asset(group_name="flights", deps=[departures], partitions_def=_DAYS)
def delays() -> None:
    """Second asset of the first group."""


@dg.asset(group_name="trains", partitions_def=_DAYS)
def timetable() -> None:
    """Asset of the second group."""


@dg.asset(group_name="flights")
def airports() -> None:
    """Asset of the first group without partitions."""


@dg.asset(group_name="trains")
def stations() -> None:
    """Asset of the second group without partitions."""


@dg.asset(group_name="flights")
def slow() -> None:
    """Asset that takes a minute."""
    time.sleep(60)


@dg.asset_check(asset=departures)
def not_empty() -> dg.AssetCheckResult:
    """Check of the first group."""
    return dg.AssetCheckResult(passed=True)


@dg.op
def say_nothing() -> None:
    """Op of a job without assets."""


@dg.job
def chores() -> None:
    """Job without assets."""
    say_nothing()


flights_job = dg.define_asset_job("flights_job", [departures, delays])
all_job = dg.define_asset_job("all_job", [departures, delays, timetable])
defs = dg.Definitions(
    assets=[departures, delays, timetable, airports, stations, slow],
    asset_checks=[not_empty],
    jobs=[flights_job, all_job, chores],
    schedules=[dg.ScheduleDefinition(job=flights_job, cron_schedule="0 0 1 1 *", name="yearly")],
)

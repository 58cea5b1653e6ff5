"""Definitions for tests of the pruning of events: assets of several cadences that depend on each other, with checks."""

import dagster as dg

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-09")
WEEKS = dg.WeeklyPartitionsDefinition("2023-12-31", end_date="2024-01-14")
KEYS = DAYS.get_partition_keys()


@dg.asset(partitions_def=DAYS)
def raw(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """A table. The run's tag `content` is its content."""
    content = context.run.tags.get("content", "a")
    if context.run.tags.get("fails"):
        raise dg.Failure("the source is gone")
    return dg.MaterializeResult(
        metadata={"rows": 3}, data_version=dg.DataVersion(f"{content}-{context.partition_key}")
    )


_WINDOW = dg.TimeWindowPartitionMapping(start_offset=-2, allow_nonexistent_upstream_partitions=True)


@dg.asset(partitions_def=DAYS, deps=[dg.AssetDep(raw, partition_mapping=_WINDOW)], code_version="1")
def features() -> None:
    """A table of three days of another."""


@dg.asset_check(asset=features)
def contract(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Fails if the run says so."""
    return dg.AssetCheckResult(passed="bad" not in context.run.tags)


@dg.asset(partitions_def=WEEKS, deps=[features])
def weekly() -> None:
    """A table of weeks."""


@dg.asset(deps=[features, weekly])
def whole(context: dg.AssetExecutionContext) -> None:
    """An asset without partitions."""
    context.log_event(dg.AssetObservation("whole", description=context.run.run_id, metadata={"size": 1}))


@dg.asset(deps=[whole])
def report() -> None:
    """The last one."""


defs = dg.Definitions(assets=[raw, features, weekly, whole, report], asset_checks=[contract])

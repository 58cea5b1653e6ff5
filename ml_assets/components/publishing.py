"""One publish, as Dagster sees it: an event per good partition, checks that show verdicts, a named failure.

A run covers one partition or a whole range; either way good partitions land and are materialized, and the
step fails afterwards if any was rejected, so that nothing is green by halves.
"""

from collections.abc import Iterable, Iterator

import dagster as dg

from ml_assets.components.pages import name_some, run_url, table_of
from ml_assets.tables.publish import PublishedPartition, PublishResult, publish
from ml_assets.tables.spec import Incoming, RunFacts, TableSpec
from ml_assets.validation.findings import table_rows
from ml_assets.validation.verdict import Verdict
from resources.platform import Platform

CONTRACT = "contract"
VOLUME = "volume"
VOLUME_RULES = ("volume", "empty_partition")
"""Rules shown under the check `volume`; all others belong to `contract`."""


def check_specs(key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """The checks every table has; both keep a partition from main."""
    return [
        dg.AssetCheckSpec(
            CONTRACT,
            asset=key,
            blocking=True,
            description="Columns, types, keys, ranges, categories, event times.",
        ),
        dg.AssetCheckSpec(VOLUME, asset=key, blocking=True, description="Rows against earlier partitions."),
    ]


def publish_and_report(
    context: dg.AssetExecutionContext, platform: Platform, spec: TableSpec, incoming: Iterable[Incoming]
) -> Iterator[dg.AssetCheckResult]:
    """Publish and tell Dagster.

    Raises `dg.Failure` when partitions were rejected (final: the data must change) or the source failed for
    some (worth a retry), after the good ones have landed.
    """
    run_id = context.run.run_id
    run = RunFacts(run_id=run_id, url=run_url(platform.settings.ui_url, run_id))
    result = publish(platform.lake, platform.ledger, spec, incoming, run)
    for key, partition in result.merged.items():
        context.log_event(_materialization(context.asset_key, spec, key, partition, result.commit_id))
    verdicts = {
        **{key: good.verdict for key, good in result.merged.items()},
        **{key: bad.verdict for key, bad in result.rejected.items()},
    }
    yield _check(CONTRACT, verdicts, of_volume=False)
    yield _check(VOLUME, verdicts, of_volume=True)
    _fail_if_any_was_refused(spec, result)


def _materialization(
    asset: dg.AssetKey, spec: TableSpec, key: str, partition: PublishedPartition, commit_id: str
) -> dg.AssetMaterialization:
    facts = {
        "dagster/partition_row_count": partition.rows,
        "lake/commit": commit_id,
        "content_digest": partition.content_digest,
        "changed": partition.changed,
        "verdict": partition.verdict.status,
    }
    if partition.verdict.findings:
        facts["findings"] = table_of(table_rows(key, partition.verdict.findings))
    return dg.AssetMaterialization(
        asset,
        partition=None if spec.cadence.kind == "none" else key,
        metadata=facts,
        tags={"dagster/data_version": partition.content_digest},
    )


def _check(name: str, verdicts: dict[str, Verdict], *, of_volume: bool) -> dg.AssetCheckResult:
    rows = [
        row
        for key, verdict in verdicts.items()
        for row in table_rows(key, [f for f in verdict.findings if (f.rule in VOLUME_RULES) == of_volume])
    ]
    blocking = [row for row in rows if row["severity"] == "block"]
    refused = sorted({str(row["partition"]) for row in blocking})
    said = f"{len(verdicts)} partitions judged, {len(refused)} rejected"
    return dg.AssetCheckResult(
        check_name=name,
        passed=not rows,
        severity=dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN,
        description=f"{said}: {name_some(refused)}" if refused else said,
        metadata={"findings": table_of(rows), "partitions": len(verdicts), "rejected": len(refused)},
    )


def _fail_if_any_was_refused(spec: TableSpec, result: PublishResult) -> None:
    if result.rejected:
        first, bad = next(iter(result.rejected.items()))
        reasons = [{"partition": key, "why": one.verdict.explain()} for key, one in result.rejected.items()]
        raise dg.Failure(
            f"{spec.table}: {len(result.rejected)} of {len(result.rejected) + len(result.merged)} partitions are "
            f"rejected and stay off main: {name_some(list(result.rejected))}. Their rows are kept on branch "
            f"{bad.branch}. {bad.verdict.explain()}\n"
            f"Mend the source and materialize them again, or accept one as it is: "
            f"ml-assets accept {spec.table} {first} --reason '…'",
            metadata={"rejected": table_of(reasons)},
            allow_retries=False,
        )
    if result.failed:
        named = name_some(list(result.failed))
        raise dg.Failure(
            f"{spec.table}: the source failed for {named}: {next(iter(result.failed.values()))}",
            metadata={
                "failed": table_of([{"partition": key, "why": why} for key, why in result.failed.items()])
            },
        )

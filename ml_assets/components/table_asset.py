"""Asset of a published table, for datasets and feature tables: its declaration, and the report of a publish to Dagster.

A run covers one partition or a whole range. Good partitions land and are materialized in both cases. The step fails
afterwards if a partition was rejected, so that no run is green with missing partitions. Not here: the rows (dataset,
feature_table), the publish itself (`ml_assets.tables.publish`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from ml_assets.components.base import freshness_policy
from ml_assets.components.columns import COLUMN_SCHEMA, DAYS_BEGIN_IN, NAMED_COLUMNS
from ml_assets.components.conditions import condition_named
from ml_assets.components.declared_metadata import DECLARED
from ml_assets.components.failures import OUT_OF_REACH, RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.many_events import log_materializations, log_output
from ml_assets.components.pages import ON_A_PAGE, column_schema, commit_facts, profile_table, table_of
from ml_assets.components.partitions import partitions_definition
from ml_assets.components.specs import TableSpecSection
from ml_assets.components.tags import DATA_VERSION
from ml_assets.pipeline.links import run_url
from ml_assets.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.tables.manifest import PartitionManifest
from ml_assets.tables.publish import PublishedPartition, PublishResult, publish
from ml_assets.tables.reader import TableReader
from ml_assets.tables.spec import Incoming, PublishingRun, SourceFailed, TableSpec
from ml_assets.validation.contract import Contract
from ml_assets.validation.findings import Finding, table_rows
from ml_assets.validation.verdict import Verdict
from resources.platform import Platform
from resources.words import counted, name_some

PublishTable = Callable[[dg.AssetExecutionContext, Platform, DeclaredTables], Iterator[dg.AssetCheckResult]]
CONTRACT = "contract"
VOLUME = "volume"
WARNINGS = "warnings"
UNCHANGED = "main already held this content"
VOLUME_RULES = ("volume", "empty_partition")
"""Rules shown under the check `volume`; all others belong to `contract`."""


def table_spec(
    kind: str, spec: TableSpecSection, version: str, inputs: Mapping[str, int | None] | None = None
) -> TableSpec:
    """Return the publishing specification of a declared table; `version` is the version of its code or source."""
    return TableSpec(
        kind=kind,
        name=spec.name,
        contract=spec.contract,
        cadence=spec.cadence,
        volume=spec.volume,
        quarantine_limit=spec.quarantine_limit,
        code_version=version,
        inputs=inputs or {},
    )


def table_asset(
    section: TableSpecSection,
    table: TableSpec,
    deps: Sequence[dg.AssetDep],
    kind: str,
    publish_table: PublishTable,
    facts: Mapping[str, Any] | None = None,
) -> dg.AssetsDefinition:
    """Return the asset of a published table, with `facts` among its metadata.

    `publish_table` yields check results and logs materializations. It raises if a partition is missing.
    """
    key = dg.AssetKey([table.kind, table.name])
    read = {dep.asset_key for dep in deps}
    looked_up = [dg.AssetKey(one.split("/")) for one in section.referred_columns]
    named = {
        name: {**section.referred_columns.get(name, {}), **own.get(name, {})}
        for own in [(facts or {}).get(NAMED_COLUMNS, {})]
        for name in [*section.referred_columns, *own]
    }

    @dg.asset(
        key=key,
        deps=[*deps, *(dg.AssetDep(one) for one in looked_up if one not in read)],
        partitions_def=partitions_definition(section.partitions),
        # A range is one run: validated as one frame and merged once, with one event per day.
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        check_specs=check_specs(key),
        group_name=section.group_name,
        description=section.description or None,
        owners=list(section.owners) or None,
        kinds={kind, "parquet"},
        code_version=table.code_version,
        metadata={
            COLUMN_SCHEMA: column_schema(section.contract),
            "lake/table": table.table,
            DECLARED: dg.MetadataValue.json(DeclaredTable.of(table).to_facts()),
            **_days_begin(section.contract),
            **(facts or {}),
            NAMED_COLUMNS: named,
        },
        automation_condition=condition_named(section.automation_condition),
        freshness_policy=freshness_policy(section.freshness),
        retry_policy=RETRY_TRANSIENT,
    )
    def published(
        context: dg.AssetExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> Iterator[Any]:
        with final_unless_transient():
            yield from publish_table(context, platform, tables)
            log_output(context)

    return published


def _days_begin(contract: Contract) -> dict[str, str]:
    """Return the zone of the table's days as metadata; empty if its event time is a date or missing."""
    event_time = contract.event_time
    if event_time is None or contract.by_name[event_time].dtype != "datetime":
        return {}
    return {DAYS_BEGIN_IN: contract.event_time_zone}


def check_specs(key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Return the checks of every table.

    Only findings that keep a partition from main fail a blocking check. Automation waits for blocking checks, and a
    warning is no reason to wait.
    """
    return [
        dg.AssetCheckSpec(
            CONTRACT,
            asset=key,
            blocking=True,
            description="Columns, types, keys, ranges, categories and event times keep the contract.",
        ),
        dg.AssetCheckSpec(
            VOLUME, asset=key, blocking=True, description="Number of rows, compared with earlier partitions."
        ),
        dg.AssetCheckSpec(
            WARNINGS, asset=key, description="Findings that do not keep a partition from main."
        ),
    ]


def publish_and_report(
    context: dg.AssetExecutionContext, platform: Platform, spec: TableSpec, incoming: Iterable[Incoming]
) -> Iterator[dg.AssetCheckResult]:
    """Publish `incoming` and report the result to Dagster.

    Raises `dg.Failure` if partitions were rejected or the source failed for some, after the good partitions landed. It
    allows retries only if the source was unreachable, because other faults need a change first.
    """
    run_id = context.run.run_id
    run = PublishingRun(
        run_id=run_id, url=run_url(platform.settings.ui_url, run_id), author=platform.settings.author
    )
    out_of_reach: set[str] = set()
    result = publish(platform.lake, platform.ledger, spec, _noting(incoming, out_of_reach), run)
    materializations: list[dg.AssetMaterialization] = []
    for key, partition in result.merged.items():
        facts = _facts(key, partition) | commit_facts(platform.lake, result.commit_id)
        if key == max(result.merged):  # the page shows the newest event, so one profile per run is enough
            facts |= _statistics(TableReader(platform.lake, result.commit_id).manifest(spec.table, key))
        materializations.append(_materialization(context.asset_key, spec, key, partition, facts))
    log_materializations(context, materializations)
    verdicts = {
        **{key: good.verdict for key, good in result.merged.items()},
        **{key: bad.verdict for key, bad in result.rejected.items()},
    }
    yield from check_results(verdicts)
    _fail_if_any_is_lacking(spec, result, allow_retries=bool(out_of_reach))


def _noting(incoming: Iterable[Incoming], out_of_reach: set[str]) -> Iterator[Incoming]:
    """Yield `incoming` unchanged; add the keys whose source was unreachable to `out_of_reach`."""
    for one in incoming:
        if isinstance(one.data, SourceFailed) and isinstance(one.data.__cause__, OUT_OF_REACH):
            out_of_reach.add(one.key)
        yield one


def _statistics(manifest: PartitionManifest) -> dict[str, Any]:
    """Return completeness, ranges and freshness of a partition, from its manifest."""
    first, last = manifest.event_time or ("none", "none")
    return {
        "profile": profile_table(manifest.profile),
        "first event": first,
        "last event": last,
        "source watermark": manifest.source_watermark or "not stated",
    }


def _facts(key: str, partition: PublishedPartition) -> dict[str, Any]:
    # Few facts, because the event of every partition of every run is kept forever. The digest is the data version.
    facts: dict[str, Any] = {
        "dagster/partition_row_count": partition.rows,
        "verdict": partition.verdict.status,
    }
    if partition.verdict.quarantined:
        facts["quarantined rows"] = partition.verdict.quarantined
    if partition.verdict.findings:
        facts["findings"] = table_of(table_rows(key, partition.verdict.findings))
    return facts


def _materialization(
    asset: dg.AssetKey, spec: TableSpec, key: str, partition: PublishedPartition, facts: dict[str, Any]
) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset,
        partition=None if spec.cadence.kind == "none" else key,
        description=None if partition.changed else UNCHANGED,
        metadata=facts,
        tags={DATA_VERSION: partition.content_digest},
    )


def check_results(verdicts: Mapping[str, Verdict]) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of a table's checks that follow from the verdicts on some of its partitions."""
    for check in (CONTRACT, VOLUME, WARNINGS):
        found = [
            row
            for key, verdict in verdicts.items()
            for row in table_rows(key, [f for f in verdict.findings if _shown_by(f, verdict) == check])
        ]
        named = list(dict.fromkeys(str(row["partition"]) for row in found))
        outcome = "warned" if check == WARNINGS else "rejected"
        said = f"{counted(len(verdicts), 'partition')} validated, {len(named)} {outcome}"
        yield dg.AssetCheckResult(
            check_name=check,
            passed=not found,
            severity=dg.AssetCheckSeverity.WARN if check == WARNINGS else dg.AssetCheckSeverity.ERROR,
            description=f"{said}: {name_some(named, ON_A_PAGE)}" if named else said,
            metadata={
                "findings": table_of(found),
                "partitions validated": len(verdicts),
                f"partitions {outcome}": len(named),
            },
        )


def _shown_by(finding: Finding, verdict: Verdict) -> str:
    # Findings of an accepted partition no longer keep it from main.
    if not (finding.blocks and verdict.blocks):
        return WARNINGS
    return VOLUME if finding.rule in VOLUME_RULES else CONTRACT


def _fail_if_any_is_lacking(spec: TableSpec, result: PublishResult, *, allow_retries: bool) -> None:
    said = _rejected(spec, result) + _failed(spec, result)
    if said:
        why = {key: one.verdict.explain() for key, one in result.rejected.items()} | dict(result.failed)
        raise dg.Failure(
            "\n".join(said),
            metadata={"lacking": table_of([{"partition": key, "why": text} for key, text in why.items()])},
            allow_retries=allow_retries,
        )


def _rejected(spec: TableSpec, result: PublishResult) -> list[str]:
    if not result.rejected:
        return []
    first, bad = next(iter(result.rejected.items()))
    count = len(result.rejected) + len(result.merged)
    return [
        f"{spec.table}: rejected and not merged into main: {name_some(result.rejected, ON_A_PAGE)} "
        f"({len(result.rejected)} of {counted(count, 'partition')}). Their rows are kept on branch {bad.branch}.",
        bad.verdict.explain(),
        f"Fix the source and materialize them again, or accept one as it is: "
        f"ml-assets accept {spec.table} {first} --reason '…'",
    ]


def _failed(spec: TableSpec, result: PublishResult) -> list[str]:
    if not result.failed:
        return []
    named = name_some(result.failed, ON_A_PAGE)
    return [f"{spec.table}: the source failed for {named}: {next(iter(result.failed.values()))}"]

"""Asset of a published table, for datasets and feature tables, and the report of its publish to Dagster.

Each partition gets an event, chunk by chunk. Good partitions are materialized also if others are rejected. The step
fails afterwards, so that no run is green with missing partitions. Not here: how rows are read or computed (`dataset`,
`feature_table`), the checks (`checks.table`), the publish itself (`ml_assets.data.tables.publish`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import dagster as dg

from ml_assets.components.base import condition_named, freshness_policy, partitions_definition, signed
from ml_assets.components.checks.table import check_results, check_specs
from ml_assets.components.failures import OUT_OF_REACH, RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.metadata import (
    COLUMN_SCHEMA,
    DATA_VERSION,
    DAYS_BEGIN_IN,
    DECLARED,
    DEPRECATED,
    NAMED_COLUMNS,
    ROOT_RUN,
)
from ml_assets.components.pages import (
    ON_A_PAGE,
    column_schema,
    commit_facts,
    drift_in_markdown,
    profile_table,
    readable,
    table_of,
)
from ml_assets.components.specs import BackfillSection, TableSpecSection, TrainingPipelineSpec
from ml_assets.dagster_host.steps import log_materializations, log_output
from ml_assets.data.sources.protocol import PageFacts
from ml_assets.data.tables.cadence import UNPARTITIONED
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables, InputTable
from ml_assets.data.tables.derive import Plan
from ml_assets.data.tables.guard import InputsRefused
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.publish.audit import drift_of_partitions
from ml_assets.data.tables.publish.prepare import MadePartition
from ml_assets.data.tables.publish.publish import (
    PublishedPartition,
    PublishResult,
    RejectedPartition,
    publish_in_chunks,
    published_by,
)
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, SourceFailed, TableSpec
from ml_assets.data.validation.verdict import table_rows
from ml_assets.foundation.links import partition_address, run_url
from resources.platform import Platform
from resources.words import counted, name_some

Reported = dg.AssetCheckResult | dg.AssetMaterialization
UNCHANGED = "main already held this content"
PublishTable = Callable[[dg.AssetExecutionContext, Platform, DeclaredTables], Iterator[Reported]]


def ranged_asset(
    key: dg.AssetKey,
    publish: PublishTable,
    spec: TableSpecSection | TrainingPipelineSpec,
    condition: dg.AutomationCondition | None,
    backfill: BackfillSection | None = None,
    **declared: Any,
) -> dg.AssetsDefinition:
    """Return an asset with the partitions and owners of `spec`, whose run makes a range of partitions.

    `backfill` divides a backfill into several runs. `publish` yields check results and logs materializations. It raises
    if a partition is missing.
    """

    def published(
        context: dg.AssetExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> Iterator[Any]:
        with final_unless_transient(platform.settings):
            yield from publish(context, platform, tables)
            log_output(context)

    made: Any = dg.asset(
        key=key,
        partitions_def=partitions_definition(spec.partitions),
        # A range is one run, whose start costs more than hundreds of small partitions.
        backfill_policy=dg.BackfillPolicy.multi_run(backfill.partitions_per_run)
        if backfill
        else dg.BackfillPolicy.single_run(),
        output_required=False,
        owners=list(spec.owners) or None,
        automation_condition=condition,
        retry_policy=RETRY_TRANSIENT,
        **declared,
    )
    return made(signed(published))


def require_all(made: str, possible: Plan) -> None:
    """Raise `InputsRefused` for the partitions of `made` that the plan refused. Call it when the others have landed."""
    if possible.refused:
        refused = {f"{made} {key}": why for key, why in possible.refused.items()}
        raise InputsRefused(made, refused, possible.missing)


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """A run that makes partitions of a table."""

    context: dg.AssetExecutionContext
    platform: Platform
    tables: DeclaredTables
    reader: TableReader
    """Main at the start of the run."""
    inputs: Sequence[InputTable]
    keys: Sequence[str]
    """Partitions whose rows are needed: without those that an earlier try of the run published."""


@dataclass(frozen=True, kw_only=True)
class RunRows:
    """Rows of the partitions of a run. They are read while they are published, one partition after the other."""

    incoming: Iterable[Incoming | MadePartition]
    facts: Callable[[], PageFacts] = dict
    """Facts of the source for the page, asked after each chunk."""
    possible: Plan | None = None
    """Partitions that can be made, and why the others cannot; None: all can."""


def table_asset(
    section: TableSpecSection,
    table: TableSpec,
    rows_of: Callable[[TableRun], AbstractContextManager[RunRows]],
    kind: str,
    deps: Sequence[dg.AssetDep] = (),
    inputs_of: Callable[[DeclaredTables], Sequence[InputTable]] = lambda _: (),
    facts: Mapping[str, Any] | None = None,
) -> dg.AssetsDefinition:
    """Return the asset of a published table, with `facts` among its metadata; see `ranged_asset`.

    A run publishes the rows that `rows_of` returns. It raises `InputsRefused` for partitions that cannot be made.
    """

    def publish(
        context: dg.AssetExecutionContext, platform: Platform, tables: DeclaredTables
    ) -> Iterator[Reported]:
        reader, inputs = TableReader.at(platform.lake, MAIN), inputs_of(tables)
        keys = context.partition_keys if section.partitions else [UNPARTITIONED]
        resumed = published_by(_runs_of_retries(context), reader, platform.ledger, table, keys, inputs)
        needed = [key for key in keys if key not in resumed]
        run = TableRun(
            context=context, platform=platform, tables=tables, reader=reader, inputs=inputs, keys=needed
        )
        with rows_of(run) as rows:
            total = len(keys) - (len(rows.possible.refused) if rows.possible else 0)
            if total:
                yield from publish_and_report(
                    context,
                    platform,
                    tables,
                    table,
                    rows.incoming,
                    total=total,
                    resumed=resumed,
                    source_facts=rows.facts,
                )
        if rows.possible:
            require_all(table.table, rows.possible)

    key = dg.AssetKey([table.kind, table.name])
    read = {dep.asset_key for dep in deps}
    looked_up = [dg.AssetKey(one.split("/")) for one in section.referred_columns]
    named = {
        name: {**section.referred_columns.get(name, {}), **own.get(name, {})}
        for own in [(facts or {}).get(NAMED_COLUMNS, {})]
        for name in [*section.referred_columns, *own]
    }

    return ranged_asset(
        key,
        publish,
        section,
        condition_named(section.automation_condition),
        section.backfill,
        deps=[*deps, *(dg.AssetDep(one) for one in looked_up if one not in read)],
        check_specs=check_specs(key, section.drift),
        group_name=section.group_name,
        description=_description(section),
        tags={DEPRECATED: ""} if section.deprecated else None,
        kinds={kind, "parquet"},
        code_version=table.code_version,
        metadata={
            COLUMN_SCHEMA: column_schema(section.contract),
            "lake/table": table.table,
            DECLARED: dg.MetadataValue.json(DeclaredTable.of(table).to_facts()),
            **_days_begin(section),
            **(facts or {}),
            NAMED_COLUMNS: named,
        },
        freshness_policy=freshness_policy(section.freshness),
    )


def _description(section: TableSpecSection) -> str | None:
    if not section.deprecated:
        return section.description or None
    return f"**Deprecated: {section.deprecated}**\n\n{section.description}".rstrip()


def _days_begin(section: TableSpecSection) -> dict[str, str]:
    """Return the zone of the table's days as metadata; empty if its event time is a date or missing.

    Hours are hours of UTC, whatever the zone by which their numbers of rows are compared.
    """
    contract, event_time = section.contract, section.contract.event_time
    if event_time is None or contract.by_name[event_time].dtype != "datetime":
        return {}
    return {DAYS_BEGIN_IN: "UTC" if section.cadence.kind == "hourly" else contract.event_time_zone}


def _runs_of_retries(context: dg.AssetExecutionContext) -> frozenset[str]:
    """Return the ids of the runs that this run repeats, and its own if it repeats a step; empty at the first try."""
    again = frozenset({context.run.run_id}) if context.retry_number else frozenset[str]()
    root = context.run.tags.get(ROOT_RUN)
    if root is None:
        return again
    repeats = context.instance.get_run_ids(dg.RunsFilter(tags={ROOT_RUN: root}))
    return again | ({root, *repeats} - {context.run.run_id})


def publish_and_report(
    context: dg.AssetExecutionContext,
    platform: Platform,
    tables: DeclaredTables,
    spec: TableSpec,
    incoming: Iterable[Incoming | MadePartition],
    *,
    total: int,
    resumed: Mapping[str, PublishedPartition] | None = None,
    source_facts: Callable[[], PageFacts] = dict,
) -> Iterator[Reported]:
    """Publish `incoming` chunk by chunk and report each to Dagster.

    `total` counts all partitions of the run, with those in `resumed`, which an earlier try of it left on main. The page
    shows `source_facts`, asked after each chunk.

    Raises `dg.Failure` if partitions were rejected or the source failed for some, after the good partitions landed. It
    allows retries only if the source was unreachable, because other faults need a change first.
    """
    run_id = context.run.run_id
    run = PublishingRun(
        run_id=run_id, url=run_url(platform.settings.ui_url, run_id), author=platform.settings.author
    )
    out_of_reach: set[str] = set()
    done = {key: one.verdict for key, one in (resumed or {}).items()}
    rejected: dict[str, RejectedPartition] = {}
    failed: dict[str, str] = {}
    if resumed:
        said = f"published by the run that this one repeats: {name_some(sorted(resumed), ON_A_PAGE)}"
        context.log.info(f"{spec.table}: {len(resumed)} of {counted(total, 'partition')} {said}")
        yield from _materialize(context, platform, spec, resumed, platform.lake.resolve(MAIN), source_facts)
    results = publish_in_chunks(
        platform.lake,
        platform.ledger,
        spec,
        _noting(incoming, out_of_reach),
        run,
        tables,
        chunk_bytes=platform.settings.chunk_mib * 2**20,
    )
    for result in results:
        yield from _materialize(context, platform, spec, result.merged, result.commit_id, source_facts)
        done |= {key: good.verdict for key, good in result.merged.items()}
        rejected |= result.rejected
        failed |= result.failed
        context.log.info(_progress(spec, len(done) + len(rejected) + len(failed), total, result))
    verdicts = done | {key: bad.verdict for key, bad in rejected.items()}
    yield from check_results(dict(sorted(verdicts.items())), has_drift=spec.drift is not None)
    _fail_if_any_is_lacking(spec, len(done), rejected, failed, allow_retries=bool(out_of_reach))


def _progress(spec: TableSpec, count: int, total: int, result: PublishResult) -> str:
    size = sum(one.size for one in result.merged.values()) / 2**20
    last = max([*result.merged, *result.rejected, *result.failed], default="none")
    return (
        f"{spec.table}: {count} of {counted(total, 'partition')} done, up to {last} ({size:,.1f} MiB merged)"
    )


def _materialize(
    context: dg.AssetExecutionContext,
    platform: Platform,
    spec: TableSpec,
    merged: Mapping[str, PublishedPartition],
    commit_id: str,
    source_facts: Callable[[], PageFacts],
) -> Iterator[dg.AssetMaterialization]:
    """Log the events of partitions; yield the last one, because Dagster stores logged events at the next yield."""
    materializations: list[dg.AssetMaterialization] = []
    for key, partition in merged.items():
        facts = _facts(key, partition) | commit_facts(platform.lake, commit_id)
        if key == max(merged):  # the page shows the newest event, so one profile per chunk is enough
            reader = TableReader(platform.lake, commit_id)
            facts |= _statistics(reader.manifest(spec.table, key)) | _drift_page(reader, spec, key)
            address = partition_address(platform.settings.ui_url, spec.table, key)
            facts["partition page"] = dg.MetadataValue.url(address)
            facts |= {
                name: value if isinstance(value, str | int) else table_of(value)
                for name, value in source_facts().items()
            }
        materializations.append(
            dg.AssetMaterialization(
                context.asset_key,
                partition=None if spec.cadence.kind == "none" else key,
                description=None if partition.changed else UNCHANGED,
                metadata=facts,
                tags={DATA_VERSION: partition.content_digest},
            )
        )
    log_materializations(context, materializations[:-1])
    yield from materializations[-1:]


def _noting(
    incoming: Iterable[Incoming | MadePartition], out_of_reach: set[str]
) -> Iterator[Incoming | MadePartition]:
    """Yield `incoming` unchanged; add the keys whose source was unreachable to `out_of_reach`."""
    for one in incoming:
        cause = (
            one.cause
            if isinstance(one, MadePartition)
            else one.data.__cause__
            if isinstance(one.data, SourceFailed)
            else None
        )
        if isinstance(cause, OUT_OF_REACH):
            out_of_reach.add(one.key)
        yield one


def _statistics(manifest: PartitionManifest) -> dict[str, Any]:
    """Return completeness, ranges and freshness of a partition, from its manifest."""
    first, last = manifest.event_time or ("none", "none")
    counts = manifest.reconciliation
    return ({} if counts is None else {"rows of the source": counts.in_words(manifest.rows)}) | {
        "profile": profile_table(manifest.profile),
        "first event": first,
        "last event": last,
        "source watermark": manifest.source_watermark or "not stated",
    }


def _drift_page(reader: TableReader, spec: TableSpec, key: str) -> dict[str, Any]:
    """Return the distances of the newest partitions from their past, by column; nothing if they are not compared."""
    if spec.drift is None:
        return {}
    found = drift_of_partitions(reader, spec, reader.manifests(spec.table, [key]))
    return (
        {"drift of columns": dg.MetadataValue.md(drift_in_markdown(key, found[key].drift))} if found else {}
    )


def _facts(key: str, partition: PublishedPartition) -> dict[str, Any]:
    # Few facts, because the event of every partition of every run is kept forever. The digest is the data version.
    facts: dict[str, Any] = {
        "dagster/partition_row_count": partition.rows,
        "verdict": partition.verdict.status,
    }
    if partition.verdict.quarantined:
        facts["quarantined rows"] = partition.verdict.quarantined
    if partition.drift is not None and partition.drift.columns:
        facts["drift"] = readable(partition.drift.largest)
    if partition.verdict.findings:
        facts["findings"] = table_of(table_rows(key, partition.verdict.findings))
    return facts


def _fail_if_any_is_lacking(
    spec: TableSpec,
    passed: int,
    rejected: Mapping[str, RejectedPartition],
    failed: Mapping[str, str],
    *,
    allow_retries: bool,
) -> None:
    said: list[str] = []
    if rejected:
        first, bad = next(iter(rejected.items()))
        said = [
            f"{spec.table}: rejected and not merged into main: {name_some(rejected, ON_A_PAGE)} "
            f"({len(rejected)} of {counted(len(rejected) + passed, 'partition')}). Their rows are kept on branch "
            f"{bad.branch}.",
            bad.verdict.explain(),
            f"Fix the source and materialize them again, or accept one as it is: "
            f"ml-assets accept {spec.table} {first} --reason '…'",
        ]
    if failed:
        why = next(iter(failed.values()))
        said.append(f"{spec.table}: the source failed for {name_some(failed, ON_A_PAGE)}: {why}")
    if said:
        lacking = {key: one.verdict.explain() for key, one in rejected.items()} | dict(failed)
        raise dg.Failure(
            "\n".join(said),
            metadata={"lacking": table_of([{"partition": key, "why": why} for key, why in lacking.items()])},
            allow_retries=allow_retries,
        )

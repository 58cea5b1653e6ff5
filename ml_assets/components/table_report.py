"""Report of a table's publish to Dagster: an event for each partition, chunk by chunk, and the results of the checks.

Good partitions are materialized also if others are rejected. The step fails afterwards, so that no run is green with
missing partitions. Not here: the asset and its checks (`table_asset`), the publish itself
(`ml_assets.data.tables.publish`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from ml_assets.components.drift_page import drift_in_markdown
from ml_assets.components.failures import OUT_OF_REACH
from ml_assets.components.pages import (
    ON_A_PAGE,
    commit_facts,
    profile_table,
    readable,
    table_of,
)
from ml_assets.components.tags import DATA_VERSION, ROOT_RUN
from ml_assets.dagster_host.step_events import log_materializations
from ml_assets.data.sources.protocol import PageFacts
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.landing import MAIN
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.past_profiles import drift_of_partitions
from ml_assets.data.tables.publish import (
    PublishedPartition,
    PublishResult,
    RejectedPartition,
    publish_in_chunks,
)
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, SourceFailed, TableSpec
from ml_assets.data.validation.findings import Finding, table_rows
from ml_assets.data.validation.verdict import Verdict
from ml_assets.model.steps.links import partition_address, run_url
from resources.platform import Platform
from resources.words import counted, name_some

Reported = dg.AssetCheckResult | dg.AssetMaterialization
CONTRACT = "contract"
VOLUME = "volume"
WARNINGS = "warnings"
DRIFT = "drift"
"""Check of tables that declare `drift`; its findings have a rule of this name."""
UNCHANGED = "main already held this content"
_OUTCOMES = {WARNINGS: "warned", DRIFT: "drifted"}
"""Check → word for partitions with findings; `rejected` for the others."""
VOLUME_RULES = ("volume", "empty_partition")
"""Rules shown under the check `volume`; all others belong to `contract`."""


def runs_of_retries(context: dg.AssetExecutionContext) -> frozenset[str]:
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
    incoming: Iterable[Incoming],
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
        materializations.append(_materialization(context.asset_key, spec, key, partition, facts))
    log_materializations(context, materializations[:-1])
    yield from materializations[-1:]


def _noting(incoming: Iterable[Incoming], out_of_reach: set[str]) -> Iterator[Incoming]:
    """Yield `incoming` unchanged; add the keys whose source was unreachable to `out_of_reach`."""
    for one in incoming:
        if isinstance(one.data, SourceFailed) and isinstance(one.data.__cause__, OUT_OF_REACH):
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


def check_results(
    verdicts: Mapping[str, Verdict], *, has_drift: bool = False
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of a table's checks that follow from the verdicts on some of its partitions.

    `has_drift`: the table declares `drift`, and so has that check.
    """
    for check in (CONTRACT, VOLUME, WARNINGS, *([DRIFT] if has_drift else [])):
        shown = {
            key: [one for one in verdict.findings if _shown_by(one, verdict) == check]
            for key, verdict in verdicts.items()
        }
        found = [row for key, findings in shown.items() for row in table_rows(key, findings)]
        named = [key for key, findings in shown.items() if findings]
        outcome = _OUTCOMES.get(check, "rejected")
        only_warns = check == WARNINGS or (
            check == DRIFT and not any(one.blocks for findings in shown.values() for one in findings)
        )
        said = f"{counted(len(verdicts), 'partition')} validated, {len(named)} {outcome}"
        yield dg.AssetCheckResult(
            check_name=check,
            passed=not found,
            severity=dg.AssetCheckSeverity.WARN if only_warns else dg.AssetCheckSeverity.ERROR,
            description=f"{said}: {name_some(named, ON_A_PAGE)}{_columns(check, shown)}" if named else said,
            metadata={
                "findings": table_of(found),
                "partitions validated": len(verdicts),
                f"partitions {outcome}": len(named),
            },
        )


def _columns(check: str, shown: Mapping[str, Sequence[Finding]]) -> str:
    """Return the end of the sentence about drifts: the columns that drift."""
    columns = dict.fromkeys(one.column for findings in shown.values() for one in findings if one.column)
    return f" in {name_some(columns, ON_A_PAGE)}" if check == DRIFT else ""


def _shown_by(finding: Finding, verdict: Verdict) -> str:
    if finding.rule == DRIFT and finding.blocks <= verdict.blocks:
        return DRIFT
    # Findings of an accepted partition no longer keep it from main.
    if not (finding.blocks and verdict.blocks):
        return WARNINGS
    return VOLUME if finding.rule in VOLUME_RULES else CONTRACT


def _fail_if_any_is_lacking(
    spec: TableSpec,
    passed: int,
    rejected: Mapping[str, RejectedPartition],
    failed: Mapping[str, str],
    *,
    allow_retries: bool,
) -> None:
    said = _rejected(spec, passed, rejected) + _failed(spec, failed)
    if said:
        why = {key: one.verdict.explain() for key, one in rejected.items()} | dict(failed)
        raise dg.Failure(
            "\n".join(said),
            metadata={"lacking": table_of([{"partition": key, "why": text} for key, text in why.items()])},
            allow_retries=allow_retries,
        )


def _rejected(spec: TableSpec, passed: int, rejected: Mapping[str, RejectedPartition]) -> list[str]:
    if not rejected:
        return []
    first, bad = next(iter(rejected.items()))
    return [
        f"{spec.table}: rejected and not merged into main: {name_some(rejected, ON_A_PAGE)} "
        f"({len(rejected)} of {counted(len(rejected) + passed, 'partition')}). Their rows are kept on branch "
        f"{bad.branch}.",
        bad.verdict.explain(),
        f"Fix the source and materialize them again, or accept one as it is: "
        f"ml-assets accept {spec.table} {first} --reason '…'",
    ]


def _failed(spec: TableSpec, failed: Mapping[str, str]) -> list[str]:
    if not failed:
        return []
    named = name_some(failed, ON_A_PAGE)
    return [f"{spec.table}: the source failed for {named}: {next(iter(failed.values()))}"]

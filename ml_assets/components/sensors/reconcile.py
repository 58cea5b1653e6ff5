"""Comparison of Dagster's events with main, and events for partitions that Dagster lacks.

If a run is stopped between its merge and its events, Dagster does not know partitions that main holds. The same happens
when a person accepts a rejected partition. The lake is right, because trainings read the lake.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict

from ml_assets.components.checks.table import DRIFT, check_results
from ml_assets.components.metadata import DATA_VERSION, is_table
from ml_assets.components.pages import ON_A_PAGE, commit_facts
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.dagster_host.asset_graph import BaseAssetGraph
from ml_assets.dagster_host.event_log import newest_build, wiped_since, without_a_run
from ml_assets.data.tables.cadence import UNPARTITIONED
from ml_assets.data.tables.environments import inherited_by
from ml_assets.data.tables.history.diff import changed_partitions
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.publish.audit import verdict_of
from ml_assets.data.tables.reader import TableReader
from resources.lake import RefNotFound
from resources.ledger import Acceptance, Ledger
from resources.platform import Platform
from resources.words import name_some

_UNDER_WAY = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
_ACCEPTED_AT = "accepted at"
REPORTED_LATER = (
    "Reported later: a run was stopped before it could report this, or a person accepted the partition."
)


@dataclass(frozen=True)
class Apart:
    """Table on which Dagster and the lake differ."""

    table: str
    unreported: tuple[str, ...]
    """Keys on main that Dagster does not know, or knows with other content."""
    gone: tuple[str, ...]
    """Keys that Dagster knows but main does not hold."""


def tables_of(graph: BaseAssetGraph) -> list[str]:
    """Return the ids of all declared tables, sorted."""
    keys = graph.get_all_asset_keys()
    return sorted(key.to_user_string() for key in keys if is_table(key))


def compare(
    instance: dg.DagsterInstance,
    reader: TableReader,
    tables: Iterable[str],
    inherited: TableReader | None = None,
) -> list[Apart]:
    """Return the tables on which Dagster and the commit of `reader` differ.

    Partitions that are the same in `inherited` need no event. An environment has them from main, and copies no history.
    """
    found: list[Apart] = []
    for table in tables:
        held, known = reader.digests(table), _known(instance, _asset(table))
        same = {} if inherited is None else inherited.digests(table)
        unreported = tuple(
            key for key, digest in held.items() if digest not in (known.get(key), same.get(key))
        )
        gone = tuple(sorted(set(known) - set(held)))
        if unreported or gone:
            found.append(Apart(table, unreported, gone))
    return found


def is_busy(instance: dg.DagsterInstance) -> bool:
    """Return True if a run is in progress, because it may be about to log its own events."""
    return bool(instance.get_runs_count(dg.RunsFilter(statuses=list(_UNDER_WAY))))


def reconcile(
    instance: dg.DagsterInstance,
    reader: TableReader,
    ledger: Ledger,
    tables: Iterable[str],
    inherited: TableReader | None = None,
) -> list[Apart] | None:
    """Log a materialization for each partition of main that Dagster lacks; return the differences before that.

    An accepted partition is reported with the name and the reason of the person, and its table's checks turn green.
    While a run is in progress, do nothing and return None: nobody compared anything.
    """
    if is_busy(instance):
        return None
    apart = compare(instance, reader, tables, inherited)
    for one in apart:
        report_partitions(instance, reader, ledger, one.table, one.unreported)
    return apart


def report_partitions(
    instance: dg.DagsterInstance, reader: TableReader, ledger: Ledger, table: str, keys: Sequence[str]
) -> None:
    """Log a materialization for each of `keys` on main. If one was accepted, report the checks, too."""
    newest = ledger.newest_verdicts(table, keys)
    accepted = {key: row.acceptance for key, row in newest.items() if row.acceptance is not None}
    for key, manifest in reader.manifests(table, keys).items():
        facts: dict[str, Any] = {"dagster/partition_row_count": manifest.rows}
        said, acceptance = REPORTED_LATER, accepted.get(key)
        if acceptance is not None:
            said = f"Accepted by {acceptance.author}: {acceptance.reason}"
            facts |= {"accepted by": acceptance.author, "reason": acceptance.reason}
            facts[_ACCEPTED_AT] = dg.MetadataValue.timestamp(acceptance.at)
        event = dg.AssetMaterialization(
            _asset(table),
            partition=None if key == UNPARTITIONED else key,
            description=said,
            metadata={**facts, **commit_facts(reader.store, reader.commit_id)},
            tags={DATA_VERSION: manifest.content_digest},
        )
        instance.report_runless_asset_event(event)
    if accepted:
        _report_checks(instance, ledger, table, accepted)


def report_acceptance(
    instance: dg.DagsterInstance, reader: TableReader, ledger: Ledger, acceptance: Acceptance
) -> None:
    """Report an acceptance, also if Dagster already knows this content from before its rejection. Once for each.

    Does nothing while a run is in progress; the sensor reports it later.
    """
    if is_busy(instance):
        return
    table, key = acceptance.table, acceptance.key
    wanted = dg.AssetRecordsFilter(_asset(table), asset_partitions=None if key == UNPARTITIONED else [key])
    for record in instance.fetch_materializations(wanted, limit=1).records:
        event = record.asset_materialization
        at = event.metadata.get(_ACCEPTED_AT) if event else None
        if at == dg.MetadataValue.timestamp(acceptance.at):
            return
    report_partitions(instance, reader, ledger, table, [key])


def _report_checks(
    instance: dg.DagsterInstance, ledger: Ledger, table: str, accepted: Mapping[str, Acceptance]
) -> None:
    """Report the table's checks after acceptances: green unless the newest verdict on another partition rejects it."""
    rows = {key: row for key, row in ledger.newest_verdicts(table).items() if row.blocks or key in accepted}
    who = "; ".join(f"{key} accepted by {one.author}: {one.reason}" for key, one in accepted.items())
    asset = _asset(table)
    built = newest_build(instance, asset)
    verdicts = {key: verdict_of(row) for key, row in rows.items()}
    has_drift = any(one.rule == DRIFT for verdict in verdicts.values() for one in verdict.findings)
    for result in check_results(verdicts, has_drift=has_drift):
        key = dg.AssetCheckKey(asset, result.check_name or "")
        said = result._replace(description=f"{who}. {result.description}")
        instance.report_runless_asset_event(without_a_run(said, key, built))


class _Reported(BaseModel):
    """State that Dagster knows."""

    model_config = ConfigDict(frozen=True)

    loaded: str
    """`Tick.loaded`. Definitions that are loaded anew may declare a table that main holds already."""
    commit: str
    """Commit of main."""
    at: float
    """Moment of the comparison in Unix seconds."""


def _report(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
    """Reconcile Dagster with main; never request a run."""
    context, reader = tick.context, TableReader.at(platform.lake, MAIN)
    tick.saw(main=reader.commit_id)
    waits = TickAnswer(
        said="waiting for the runs in progress, which report their own partitions",
        own=tick.own,
        again_at=tick.now,
    )
    if is_busy(context.instance) or context.repository_def is None:
        return waits
    tables, inherited = tables_of(context.repository_def.asset_graph), inherited_by(platform)
    known = _Reported.model_validate_json(tick.own) if tick.own else None
    # What an environment inherits changes with another branch than its own.
    if (
        known is not None
        and known.loaded == tick.loaded
        and inherited is None
        and tick.seconds_since(known.at) < math.inf
    ):
        tables = _to_compare(context.instance, reader, tables, known)
    apart = reconcile(context.instance, reader, platform.ledger, tables, inherited)
    if apart is None:  # a run began since
        return waits
    reported = [f"{one.table}: {name_some(one.unreported, ON_A_PAGE)}" for one in apart if one.unreported]
    said = f"reported {'; '.join(reported)}" if reported else "Dagster knows all partitions of main"
    own = _Reported(loaded=tick.loaded, commit=reader.commit_id, at=tick.now.timestamp())
    return TickAnswer(said=said, own=own.model_dump_json(), again_at=None)


def _to_compare(
    instance: dg.DagsterInstance, reader: TableReader, tables: Sequence[str], known: _Reported
) -> Sequence[str]:
    """Return those of `tables` that changed on main since `known`, or whose events somebody wiped."""
    try:
        changed = {*changed_partitions(reader.store, known.commit, reader.commit_id)}
    except RefNotFound:  # the history of the lake was cut
        return tables
    wiped = wiped_since(instance, [_asset(table) for table in tables], known.at)
    return [table for table in tables if table in changed or _asset(table) in wiped]


report_missing_materializations = ticking_sensor(
    _report,
    name="report_missing_materializations",
    every_seconds=60,
    description="Reports to Dagster the partitions of main that it lacks, after a stopped run or an acceptance.",
)


def _asset(table: str) -> dg.AssetKey:
    return dg.AssetKey(table.split("/"))


def _known(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, str]:
    """Return key → data version of its newest materialization."""
    if partitions := instance.get_materialized_partitions(asset):
        tags = instance.event_log_storage.get_latest_tags_by_partition(
            asset, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION]
        )
        return {key: tags.get(key, {}).get(DATA_VERSION, "") for key in partitions}
    newest = instance.get_latest_materialization_event(asset)
    whole = newest.asset_materialization if newest else None
    return {UNPARTITIONED: (whole.tags or {}).get(DATA_VERSION, "")} if whole and not whole.partition else {}

"""Dagster's event log: data versions in its events, and results of asset checks, also without a run.

Not here: its tables (`event_tables`). Private area: states of checks and events. The public `AssetCheckEvaluation`
takes the materialization that it is about, as a type that is not public; without it, Dagster's page shows no result.
The public API reads no earlier results of a check.
"""

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.data_version import (
    INPUT_EVENT_POINTER_TAG_PREFIX,
    SKIP_PARTITION_DATA_VERSION_DEPENDENCY_THRESHOLD,
    extract_data_provenance_from_entry,
)
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecordStatus,
)
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

__all__ = [
    "COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES",
    "INPUT_EVENT_POINTER_TAG_PREFIX",
    "NOT_FINISHED_STATUSES",
    "SKIP_PARTITION_DATA_VERSION_DEPENDENCY_THRESHOLD",
    "evaluations",
    "extract_data_provenance_from_entry",
    "is_shown",
    "newest_build",
    "newest_events",
    "wiped_since",
    "without_a_run",
]

_READ = 100
"""Newest results of a check that are read."""
_ENDED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


def newest_build(
    instance: dg.DagsterInstance, asset: dg.AssetKey
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """Return the newest materialization, as a check's result names it; None if there is none."""
    for one in instance.fetch_materializations(asset, limit=1).records:
        return AssetCheckEvaluationTargetMaterializationData(
            storage_id=one.storage_id, run_id=one.run_id, timestamp=one.timestamp
        )
    return None


def without_a_run(
    result: dg.AssetCheckResult | dg.AssetCheckEvaluation,
    key: dg.AssetCheckKey,
    built: AssetCheckEvaluationTargetMaterializationData | None,
) -> dg.AssetCheckEvaluation:
    """Return the result as an event for a report outside of a run; `built` is the asset's newest materialization."""
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        target_materialization_data=built,
    )


def evaluations(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> list[dg.AssetCheckEvaluation]:
    """Return the newest results of a check, newest first."""
    found = instance.event_log_storage.get_asset_check_execution_history(key, limit=_READ, status=_ENDED)
    return [one.evaluation for one in found if one.evaluation is not None]


def newest_events(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> tuple[list[str], bool]:
    """Return a text for the newest execution of each of `checks` and the newest materialization of its asset, and True
    beside them if all these executions have a result.

    The texts change with each result, report, build and wipe, unless the newest execution has none: results of earlier
    ones may come after it. Two queries, whatever the number of checks and events.
    """
    if not checks:
        return [], True
    executions = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)
    records = instance.get_asset_records(list({key.asset_key for key in checks}))
    texts = [f"{key} {one.id} {one.status.value}" for key, one in executions.items()]
    for one in records:
        entry = one.asset_entry
        texts.append(f"{entry.asset_key} {entry.last_materialization_storage_id} {entry.asset_details}")
    return sorted(texts), all(one.status in _ENDED for one in executions.values())


def wiped_since(
    instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey], moment: float
) -> set[dg.AssetKey]:
    """Return those of `assets` whose events somebody wiped at `moment` (Unix seconds) or later."""
    wiped: set[dg.AssetKey] = set()
    for record in instance.get_asset_records(assets):
        details = record.asset_entry.asset_details
        if details is not None and (details.last_wipe_timestamp or 0.0) >= moment:
            wiped.add(record.asset_entry.asset_key)
    return wiped


def is_shown(
    instance: dg.DagsterInstance,
    key: dg.AssetCheckKey,
    built: AssetCheckEvaluationTargetMaterializationData | None,
) -> bool:
    """True if the asset's page shows a result, or will once a run has ended.

    The page shows the newest execution of a check, and only if it is of the newest materialization, `built`.
    """
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    if newest is None or built is None:
        return newest is not None
    if newest.status not in _ENDED:
        run = instance.get_run_by_id(newest.run_id)
        return run is not None and not run.is_finished
    if newest.run_id == built.run_id:
        return True
    seen = newest.evaluation.target_materialization_data if newest.evaluation else None
    # SQLite keeps whole seconds of a check's time, so times decide only for results that name no materialization.
    return newest.create_timestamp > built.timestamp if seen is None else seen.storage_id == built.storage_id

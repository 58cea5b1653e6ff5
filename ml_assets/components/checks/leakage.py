"""Leakage test as an asset check: on the newest partitions of a feature table, weekly and when its code changes.

Dagster adds each check of an asset to every run that selects the asset, and this check rebuilds a month of features
several times. So it runs the test only in a separate run, which the sensor `test_leakage` requests. A run that builds
the table repeats the newest result. If it built while the first test ran, it had none to repeat; then the sensor
repeats it. Not here: the test (tables.leakage).
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

import dagster as dg

from ml_assets.components.base import signed
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import table_of
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.components.specs import FeatureTableSpec
from ml_assets.dagster_host.event_log import (
    evaluations,
    is_shown,
    newest_build,
    newest_events,
    without_a_run,
)
from ml_assets.data.features.cut_and_rebuild import LeakTestError
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.leakage import FeatureDeclaration, find_leaks, newest_partitions
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import TableSpec
from ml_assets.data.tables.user_code import FeatureFunctionError, resolve_function
from resources.platform import Platform

LEAKAGE = "leakage"
"""Name of the check."""
WEEK_SECONDS = 7 * 24 * 3600.0
_DECLARATION, _TESTED = "declaration", "tested"
"""Metadata: digest of the tested declaration (check and result), time of the test (result)."""


def newest_result(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the newest result of a table's test; None if the table was never tested.

    Skips results that a person reported to Dagster by hand: they test nothing.
    """
    found = evaluations(instance, key)
    return next((one for one in found if {_DECLARATION, _TESTED} <= one.metadata.keys()), None)


def _tests(result: dg.AssetCheckEvaluation | None, declaration: str) -> TypeGuard[dg.AssetCheckEvaluation]:
    """True if the result is of the declaration with this digest."""
    return result is not None and result.metadata[_DECLARATION].value == declaration


def leakage_check(spec: FeatureTableSpec, table: TableSpec) -> dg.AssetChecksDefinition:
    """Return the check of one feature table."""
    asset = dg.AssetKey(["features", spec.name])
    digest = _digest(spec, table)
    check = dg.AssetCheckSpec(
        LEAKAGE,
        asset=asset,
        description="No feature uses the future, and the lookback suffices: rebuilding the newest partitions from the "
        "facts known at that time gives identical rows. Tested weekly and when the code changes; other runs "
        "repeat the "
        "result.",
        metadata={_DECLARATION: digest},
    )

    @dg.multi_asset_check(
        name=f"features__{spec.name}__{LEAKAGE}",
        specs=[check],
        can_subset=True,  # so that a run may leave the check out
        retry_policy=RETRY_TRANSIENT,
    )
    @signed
    def leakage(
        context: dg.AssetCheckExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> Iterator[dg.AssetCheckResult]:
        with final_unless_transient(platform.settings):
            if asset in context.op_execution_context.job_def.asset_layer.executable_asset_keys:
                newest = newest_result(context.instance, check.key)
                if _tests(newest, digest):
                    yield dg.AssetCheckResult(
                        asset_key=asset,
                        check_name=LEAKAGE,
                        passed=newest.passed,
                        severity=newest.severity,
                        description=newest.description,
                        metadata=newest.metadata,
                    )
                return
            cadences = {one.table: one.cadence for one in tables.inputs_of(table.table)}
            yield _tested(platform, feature_declaration(spec, cadences), digest)

    return leakage


def feature_declaration(spec: FeatureTableSpec, cadences: Mapping[str, Cadence]) -> FeatureDeclaration:
    """Return the declaration for the leakage test of `spec`; `cadences` is input table → cadence."""
    return FeatureDeclaration(
        table=f"features/{spec.name}",
        function=resolve_function(spec.function),
        path=spec.function,
        inputs=[
            InputTable(
                table=section.table,
                cadence=cadences[section.table],
                lookback=0 if section.lookback == "all" else section.lookback,
                read_by=spec.cadence,
            )
            for section in spec.inputs
        ],
        known_at={section.table: section.known_at for section in spec.inputs if section.known_at is not None},
        cadence=spec.cadence,
        primary_key=spec.contract.primary_key,
        labels=spec.labels,
        predicted_at=spec.predicted_at,
        partition_date=spec.partition_date,
        hidden=[name for name in spec.contract.names if spec.contract.hides(name)],
    )


def _request(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
    """Request a run for each table whose test is due, and repeat results that the pages do not show.

    A failed run is repeated only next week or after a change.
    """
    context, now = tick.context, tick.now.timestamp()
    if context.repository_def is None:
        tick.saw()
        return TickAnswer(said="no definitions are loaded", again_at=tick.now)
    graph = context.repository_def.asset_graph
    reader = TableReader.at(platform.lake, MAIN)
    checks = sorted((key for key in graph.asset_check_keys if key.name == LEAKAGE), key=str)
    declared = {key: str(graph.get(key).metadata[_DECLARATION]) for key in checks}
    events, have_results = newest_events(context.instance, checks)
    tick.saw(main=reader.commit_id, declared=[*declared.values()], events=events)
    requests: list[dg.RunRequest] = []
    repeated: list[dg.AssetCheckEvaluation] = []
    week = int(now // WEEK_SECONDS)
    due_at: list[float] = []
    for key, declaration in declared.items():
        table = key.asset_key.to_user_string()
        # A single partition shows nothing about the lookback.
        if len(reader.keys(table)) < 2:
            continue
        newest = newest_result(context.instance, key)
        is_tested = _tests(newest, declaration)
        tested = float(str(newest.metadata[_TESTED].value)) if is_tested else 0.0
        if not is_tested or tick.seconds_since(tested) >= WEEK_SECONDS:
            run_key = f"{table} {declaration} {week}"
            requests.append(dg.RunRequest(run_key=run_key, asset_selection=[], asset_check_keys=[key]))
            due_at.append((week + 1) * WEEK_SECONDS)
            continue
        due_at.append(tested + WEEK_SECONDS)
        built = newest_build(context.instance, key.asset_key)
        if not is_shown(context.instance, key, built):
            repeated.append(without_a_run(newest, key, built))
    next_due = datetime.fromtimestamp(min(due_at), UTC) if due_at else None
    return TickAnswer(
        said="no feature table is due",
        run_requests=requests,
        asset_events=repeated,
        again_at=next_due if have_results else tick.now,
    )


request_leakage_tests = ticking_sensor(
    _request,
    name="test_leakage",
    asset_selection=dg.AssetSelection.all_asset_checks(),
    every_seconds=60,
    description="Requests leakage tests of feature tables: weekly, and when code or declaration changed.",
)


def _tested(platform: Platform, declared: FeatureDeclaration, digest: str) -> dg.AssetCheckResult:
    """Test the newest partitions. If the test cannot run, the result is a warning with the remedy."""
    reader = TableReader.at(platform.lake, MAIN)
    keys = newest_partitions(declared.cadence, reader.keys(declared.table))
    facts: dict[str, Any] = {_TESTED: dg.MetadataValue.timestamp(time.time()), _DECLARATION: digest}
    if not keys:
        return _result(
            declared, False, f"cannot be tested: the lake has no partition of {declared.table}", facts
        )
    try:
        report = find_leaks(reader, declared, keys)
    except (LeakTestError, FeatureFunctionError) as error:
        return _result(declared, False, f"cannot be tested: {error}", facts)
    facts |= {
        "partitions": f"{keys[0]} to {keys[-1]} ({len(keys)})",
        "rows compared": report.rows_compared,
        "columns compared": len(report.columns_compared),
        "assumed always known": table_of(
            [
                {"table": name, "columns": ", ".join(found)}
                for name, found in report.always_known.items()
                if found
            ]
        ),
    }
    said = "\n\n".join(report.explain().splitlines())  # paragraphs, because pages ignore single line ends
    return _result(declared, report.ok, said, facts, dg.AssetCheckSeverity.ERROR)


def _result(
    declared: FeatureDeclaration,
    passed: bool,
    said: str,
    facts: Mapping[str, Any],
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey(declared.table.split("/")),
        check_name=LEAKAGE,
        passed=passed,
        severity=severity,
        description=said,
        metadata=facts,
    )


def _digest(spec: FeatureTableSpec, table: TableSpec) -> str:
    """Return the digest of the declaration and code that decide the result, without the rows: 16 hex digits."""
    declared = spec.model_dump(
        mode="json", include={"function", "inputs", "predicted_at", "partition_date", "labels", "partitions"}
    )
    declared |= {"code": table.code_version, "primary_key": list(spec.contract.primary_key)}
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()[:16]

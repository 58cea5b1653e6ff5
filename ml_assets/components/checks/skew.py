"""Checks `skew` and `served_skew` of `<model>/production`, and the sensors that run them.

`skew` compares the newest features with the training of the version in production. It runs in the sensor's tick,
because it reads profiles alone, and on a click. `served_skew` compares requests with the feature table, in a run: a day
of the log may be large. Not here: the comparisons (`live.retrain`, `live.served_skew`).
"""

import hashlib
from datetime import UTC, datetime, time, timedelta

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import drift_in_markdown, readable, severity_of, table_of
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.dagster_host.event_log import without_a_run
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.drift_rule import SkewRule
from ml_assets.data.validation.verdict import table_rows
from ml_assets.use.live.retrain import NotCompared, skew_of
from ml_assets.use.live.served_skew import (
    RULE,
    LoggedFiles,
    ServedSkewRule,
    compare,
    due_partitions,
    newest_verdicts,
    verdicts_of,
)
from resources.platform import Platform
from resources.words import counted, name_some

SKEW = "skew"
"""Name of the check."""
EVERY_SECONDS = 300


def skew_check(
    spec: TrainingPipelineSpec, rule: SkewRule, production: dg.AssetKey
) -> dg.AssetChecksDefinition:
    """Return the check of a model's features against the training of its version in production."""

    @dg.asset_check(
        asset=production,
        name=SKEW,
        description=f"The newest {rule.partitions} partitions of {spec.features.table} are like those that the version "
        "in production was trained on.",
    )
    def skew(platform: dg.ResourceParam[Platform]) -> dg.AssetCheckResult:
        with final_unless_transient(platform.settings):
            return _of_training(spec, rule, platform)

    return skew


def skew_sensor(spec: TrainingPipelineSpec, rule: SkewRule, production: dg.AssetKey) -> dg.SensorDefinition:
    """Return the sensor, which reports the check when main or the version in production changed."""
    check = dg.AssetCheckKey(production, SKEW)

    def evaluate(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
        promotion = platform.ledger.models.in_production(spec.name)
        tick.saw(main=platform.lake.resolve(MAIN), production=promotion.place if promotion else None)
        try:
            found = _of_training(spec, rule, platform)
        except NotCompared as error:
            return TickAnswer(said=f"not compared: {error}", again_at=None)
        shown = without_a_run(found, check, None)
        return TickAnswer(asset_events=[shown], said=found.description or "", again_at=None)

    return ticking_sensor(
        evaluate,
        name=f"{spec.name}_skew",
        asset_selection=dg.AssetSelection.checks(check),
        every_seconds=EVERY_SECONDS,
        description=f"Compares the newest features of {spec.name} with those of the training of the version in "
        "production.",
        otherwise="not compared this time",
    )


def _of_training(spec: TrainingPipelineSpec, rule: SkewRule, platform: Platform) -> dg.AssetCheckResult:
    found = skew_of(spec, rule, platform)
    newest = f"{found.now[0]} to {found.now[-1]}"
    return dg.AssetCheckResult(
        passed=not found.changes,
        severity=severity_of(rule.severity),
        description=str(found),
        metadata={
            "skew": dg.MetadataValue.float(readable(found.drift.largest)),
            "columns": dg.MetadataValue.md(drift_in_markdown(newest, found.drift, "block")),
        },
    )


def served_skew_check(
    spec: TrainingPipelineSpec, rule: ServedSkewRule, production: dg.AssetKey
) -> dg.AssetChecksDefinition:
    """Return the check of a model's requests against its feature table."""

    @dg.asset_check(
        asset=production,
        name=RULE,
        description=f"Requests for {spec.name} hold the rows of {spec.features.table}, bit by bit after the transform "
        "of the training.",
        retry_policy=RETRY_TRANSIENT,
    )
    def served_skew(
        context: dg.AssetCheckExecutionContext, platform: dg.ResourceParam[Platform]
    ) -> dg.AssetCheckResult:
        with final_unless_transient(platform.settings):
            return _of_requests(spec, rule, platform, context.run.run_id)

    return served_skew


def served_skew_sensor(
    spec: TrainingPipelineSpec, rule: ServedSkewRule, production: dg.AssetKey
) -> dg.SensorDefinition:
    """Return the sensor, which requests a run of the check if the requests of a partition were not compared yet."""
    check = dg.AssetCheckKey(production, RULE)

    def evaluate(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
        place = platform.ledger.newest_change(verdicts_of(spec.name))
        reader, logged = TableReader.at(platform.lake, MAIN), LoggedFiles.of(spec, platform)
        tick.saw(main=reader.commit_id, verdicts=place, logged=logged.names)
        due = due_partitions(spec, rule, reader, platform, tick.now)
        if not due:
            said = "all requests that can be compared are compared"
            return TickAnswer(said=said, again_at=logged.next_end(spec, tick.now))
        what = hashlib.sha256("".join(one.content_digest for one in due).encode()).hexdigest()[:16]
        # The day is part of the key, so that a run that failed is requested again tomorrow.
        run_key = f"{spec.name} {RULE} {what} {tick.now:%Y-%m-%d}"
        tomorrow = datetime.combine(tick.now.date() + timedelta(days=1), time(), UTC)
        return TickAnswer(
            run_requests=[dg.RunRequest(run_key=run_key, asset_selection=[], asset_check_keys=[check])],
            said=f"requested a comparison of {counted(len(due), 'partition')}",
            again_at=min(tomorrow, logged.next_end(spec, tick.now) or tomorrow),
        )

    return ticking_sensor(
        evaluate,
        name=f"{spec.name}_{RULE}",
        asset_selection=dg.AssetSelection.checks(check),
        every_seconds=EVERY_SECONDS,
        description=f"Compares the requests for {spec.name} of each partition with {spec.features.table}, as soon as "
        "it holds the partition.",
        otherwise="not looked up this time",
    )


def _of_requests(
    spec: TrainingPipelineSpec, rule: ServedSkewRule, platform: Platform, run_id: str
) -> dg.AssetCheckResult:
    """Compare what is due; show the newest verdicts, of which none may have findings in a partition compared now."""
    reader = TableReader.at(platform.lake, MAIN)
    due = due_partitions(spec, rule, reader, platform, datetime.now(UTC))
    compared = [compare(spec, rule, reader, platform, one, run_id) for one in due]
    known = newest_verdicts(spec.name, platform)
    shown = compared or known[-1:]
    broken = [one for one in shown if one.findings]
    rows = sum(one.rows for one in shown)
    names = name_some([one.key for one in shown])
    if not shown:
        said = f"no request was logged in a partition that {spec.features.table} holds"
    elif broken:
        columns = sorted({found.column for one in broken for found in one.findings if found.column})
        what = f"other values in {', '.join(columns)}" if columns else "no row to compare"
        said = f"{names}: {what} ({name_some([one.key for one in broken])}); {counted(rows, 'row')} compared"
    else:
        said = f"{names}: {counted(rows, 'row')} compared, no input differs in more rows than allowed"
    partitions = [
        {
            "partition": one.key,
            "verdict": one.status,
            "rows": one.rows,
            "inputs": ", ".join(found.column for found in one.findings if found.column),
        }
        for one in reversed(known)
    ]
    return dg.AssetCheckResult(
        passed=not broken,
        severity=severity_of(rule.severity),
        description=said,
        metadata={
            "rows": rows,
            "findings": table_of([row for one in broken for row in table_rows(one.key, one.findings)]),
            "partitions": table_of(partitions),
        },
    )

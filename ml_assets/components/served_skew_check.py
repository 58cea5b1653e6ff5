"""Check `served_skew` of `<model>/production`, and the sensor that requests it when a partition can be compared.

A run compares, because a day of the log may be large. Not here: the comparison and its record (`live.served_verdicts`),
the policy (`live.served_policy`), the features against the training (`skew_check`).
"""

import hashlib
from datetime import UTC, datetime

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import table_of
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.findings import table_rows
from ml_assets.use.live.served_policy import RULE, ServedSkewRule
from resources.artifacts import ArtifactsError
from resources.lake import LakeError
from resources.ledger import LedgerError
from resources.platform import Platform
from resources.words import counted, name_some

EVERY_SECONDS = 300


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
        with final_unless_transient():
            return _compared(spec, rule, platform, context.run.run_id)

    return served_skew


def served_skew_sensor(
    spec: TrainingPipelineSpec, rule: ServedSkewRule, production: dg.AssetKey
) -> dg.SensorDefinition:
    """Return the sensor, which requests a run of the check if the requests of a partition were not compared yet."""
    check = dg.AssetCheckKey(production, RULE)

    @dg.sensor(
        name=f"{spec.name}_{RULE}",
        asset_selection=dg.AssetSelection.checks(check),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Compares the requests for {spec.name} of each partition with {spec.features.table}, as soon as "
        "it holds the partition.",
    )
    def watch(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SensorResult:
        from ml_assets.use.live.served_verdicts import due_partitions

        now = datetime.now(UTC)
        try:
            due = due_partitions(spec, rule, TableReader.at(platform.lake, "main"), platform, now)
        except (ArtifactsError, LakeError, LedgerError) as error:
            return dg.SensorResult(skip_reason=f"not looked up this time: {error}")
        if not due:
            return dg.SensorResult(skip_reason="all requests that can be compared are compared")
        what = hashlib.sha256("".join(one.content_digest for one in due).encode()).hexdigest()[:16]
        # The day is part of the key, so that a run that failed is requested again tomorrow.
        run_key = f"{spec.name} {RULE} {what} {now:%Y-%m-%d}"
        return dg.SensorResult([dg.RunRequest(run_key=run_key, asset_selection=[], asset_check_keys=[check])])

    return watch


def _compared(
    spec: TrainingPipelineSpec, rule: ServedSkewRule, platform: Platform, run_id: str
) -> dg.AssetCheckResult:
    """Compare what is due; show the newest verdicts, of which none may have findings in a partition compared now."""
    from ml_assets.use.live.served_verdicts import compare, due_partitions, newest_verdicts

    reader = TableReader.at(platform.lake, "main")
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
    return dg.AssetCheckResult(
        passed=not broken,
        severity=dg.AssetCheckSeverity.ERROR if rule.severity == "error" else dg.AssetCheckSeverity.WARN,
        description=said,
        metadata={
            "rows": rows,
            "findings": table_of([row for one in broken for row in table_rows(one.key, one.findings)]),
            "partitions": table_of(
                [
                    {
                        "partition": one.key,
                        "verdict": one.status,
                        "rows": one.rows,
                        "inputs": ", ".join(found.column for found in one.findings if found.column),
                    }
                    for one in reversed(known)
                ]
            ),
        },
    )

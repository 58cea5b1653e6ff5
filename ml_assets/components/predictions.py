"""Asset `<model>/predictions`: the predictions of the version in production for each row of the feature table.

A table of the lake, published like any other: audited on a branch, then merged. Not here: the predictions
(`pipeline.scoring`), the check of features against labels (evaluation).
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from ml_assets.components.conditions import condition_named
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.many_events import log_output
from ml_assets.components.partitions import lookback_mapping, partitions_definition
from ml_assets.components.specs import ScoringSection, TrainingPipelineSpec
from ml_assets.components.table_asset import check_specs
from ml_assets.components.table_report import Reported, publish_and_report
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.derive import plan
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.refusal import InputsRefused
from ml_assets.model.steps.spec import PREDICTIONS
from resources.platform import Platform
from resources.words import name_some

PREDICTIONS_GROUP = "predictions"
"""Group of all such assets: "Materialize all" of a pipeline's group trains, when nothing may be in production yet."""


def predictions_key(model: str) -> dg.AssetKey:
    """Return the asset key `<model>/predictions`."""
    return dg.AssetKey([model, PREDICTIONS])


def predictions_asset(spec: TrainingPipelineSpec, scoring: ScoringSection) -> dg.AssetsDefinition:
    """Return the asset that scores partitions of the feature table of `spec`."""
    key = predictions_key(spec.name)

    @dg.asset(
        key=key,
        deps=[dg.AssetDep(spec.features.table.split("/"), partition_mapping=lookback_mapping(0))],
        partitions_def=partitions_definition(spec.partitions),
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        check_specs=check_specs(key),
        group_name=PREDICTIONS_GROUP,
        description=f"Predictions of the version of {spec.name} in production for each row of {spec.features.table}, "
        f"and of the canary beside it. Run it: `ml-assets launch {spec.name}/{PREDICTIONS} PARTITION`.",
        owners=list(spec.owners) or None,
        kinds={"onnx", "parquet"},
        metadata={"lake/table": f"{spec.name}/{PREDICTIONS}"},
        automation_condition=condition_named(scoring.automation_condition),
        retry_policy=RETRY_TRANSIENT,
    )
    def predictions(
        context: dg.AssetExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> Iterator[Any]:
        with final_unless_transient():
            yield from _publish(context, spec, scoring, platform, tables)
            log_output(context)

    return predictions


def _publish(
    context: dg.AssetExecutionContext,
    spec: TrainingPipelineSpec,
    scoring: ScoringSection,
    platform: Platform,
    tables: DeclaredTables,
) -> Iterator[Reported]:
    """Score the partitions of the run whose features may be used; raise for the others when these have landed."""
    from ml_assets.model.steps.scoring import (
        CanaryCannotScore,
        predictions_table,
        scored_partitions,
        scorers_of,
    )

    features = tables.find(spec.features.table)
    assert features is not None  # otherwise `require_consistent` refuses the declarations
    scorers = scorers_of(platform, spec.name)
    reader = TableReader.at(platform.lake, "main")
    table = predictions_table(spec, scoring.volume, dict(features.columns), scorers)
    inputs = [InputTable(table=features.table, cadence=features.cadence)]
    possible = plan(reader, platform.ledger, tables, inputs, context.partition_keys, table.cadence)
    keys = [key for one in possible.ranges for key in one]
    faults: dict[str, str] = {}
    if keys:
        partitions = scored_partitions(spec, scorers, reader, keys, faults)
        yield from publish_and_report(context, platform, tables, table, partitions, total=len(keys))
    if possible.refused:
        refused = {f"{table.table} {key}": why for key, why in possible.refused.items()}
        raise InputsRefused(table.table, refused, possible.missing)
    fault = scorers.canary_fault or next(iter(faults.values()), "")
    if fault:
        lacking = name_some(sorted(faults) or keys)
        raise CanaryCannotScore(
            f"the predictions of production are on main, but the canary has none for {lacking}: {fault}. "
            f"Take it back: ml-assets demote {spec.name} --canary --reason '…'"
        )

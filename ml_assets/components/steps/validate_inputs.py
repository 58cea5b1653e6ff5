"""Step 1: judge what the snapshot will read, and all it was made from, before anything is launched."""

from typing import Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient, inputs_refused
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.tables.declared import DeclaredTables
from ml_assets.tables.guard import validate_window
from ml_assets.tables.reader import TableReader
from resources.platform import Platform


def validate_inputs_op(spec: TrainingPipelineSpec) -> dg.OpDefinition:
    """Refuse with the list of what is missing, rejected or unusable; name what is stale."""

    @dg.op(
        name=f"{spec.name}__validate_inputs",
        ins={"features": dg.In(dg.Nothing)},
        description="Judge the partitions the snapshot will read and all they were made from; refuse by name what is "
        "missing, rejected or unusable.",
        retry_policy=RETRY_TRANSIENT,
    )
    def validate_inputs(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> dict[str, Any]:
        with final_unless_transient():
            keys = sorted(context.asset_partition_keys_for_input("features"))
            _require_whole_window(spec, context.partition_key, keys)
            reader = TableReader.at(platform.lake, "main")
            validation = validate_window(reader, platform.ledger, tables, spec.features.table, keys)
            refused = {f"{spec.features.table} {key}": "is missing" for key in validation.missing}
            refused |= validation.refused
            if spec.on_stale_inputs == "refuse":
                refused |= {
                    f"{spec.features.table} {key}": f"is stale: {why}"
                    for key, why in validation.stale.items()
                }
            if refused:
                raise inputs_refused(f"{spec.name} {context.partition_key}", refused, validation.to_build)
            context.log.info(
                f"{len(keys)} partitions of {spec.features.table} are valid, {len(validation.stale)} stale"
            )
            return {
                "commit": reader.commit_id,
                "keys": keys,
                "stale": dict(validation.stale),
                "inputs": [dict(row) for row in validation.inputs],
            }

    return validate_inputs


def _require_whole_window(spec: TrainingPipelineSpec, partition: str, keys: list[str]) -> None:
    """Dagster leaves out partitions before the table's start, which would shorten a window silently."""
    if len(keys) < spec.window.total:
        raise dg.Failure(
            f"{spec.name} {partition} needs {spec.window.total} partitions of {spec.features.table} "
            f"(train {spec.window.train}, validation {spec.window.validation}, holdout {spec.window.holdout}), "
            f"but the table begins only {len(keys)} partitions before that: choose a later partition or a "
            "shorter window",
            allow_retries=False,
        )

"""Step 1 for Dagster: validate the partitions of the window before anything is launched."""

from collections.abc import Mapping

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.tags import RANGE_END, RANGE_START
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.refusal import BuildRefused
from ml_assets.model.steps.values import ValidatedWindow
from resources.platform import Platform


def validate_inputs_op(spec: TrainingPipelineSpec) -> dg.OpDefinition:
    """Return the op that refuses missing, rejected or unusable inputs by name and lists stale inputs."""

    @dg.op(
        name=f"{spec.name}__validate_inputs",
        ins={"features": dg.In(dg.Nothing)},
        description="Check the partitions that the snapshot will read, and all partitions behind them; refuse missing, "
        "rejected and unusable ones by name.",
        retry_policy=RETRY_TRANSIENT,
    )
    def validate_inputs(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> ValidatedWindow:
        from ml_assets.model.steps import window

        with final_unless_transient():
            _require_one_partition(spec.name, context.run.tags)
            keys = [*context.asset_partition_keys_for_input("features")]
            validated = window.validate_inputs(spec, platform, tables, context.partition_key, keys)
            context.log.info(
                f"{len(validated.keys)} partitions of {validated.table} are valid, {len(validated.stale)} stale"
            )
            return validated

    return validate_inputs


class ManyPartitions(BuildRefused):
    """A run was asked to train a range of partitions."""


def _require_one_partition(model: str, tags: Mapping[str, str]) -> None:
    first, last = tags.get(RANGE_START), tags.get(RANGE_END)
    if first != last:
        raise ManyPartitions(
            f"{model} {first} to {last}: a run trains one partition. Launch a backfill in Dagster, which starts a run "
            "for each, or launch one partition at a time"
        )

"""Steps 1 and 2 for Dagster: validate the window before anything is launched, freeze it, and show the training set."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.metadata import RANGE_END, RANGE_START
from ml_assets.components.pages import commit_facts, study_facts, table_of
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import BuildRefused
from ml_assets.model.steps import window
from ml_assets.model.steps.values import TrainingSet, ValidatedWindow
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


STUDY = "study"
"""Input that carries no value: it only orders the step after a study."""


def snapshot_op(spec: TrainingPipelineSpec, current_check: str, asset: dg.AssetKey) -> dg.OpDefinition:
    """Return the op that takes the window's rows at one commit and splits, encodes and shards them.

    If the pipeline declares a study, the op waits for a study in the same run and takes the newest result.
    """

    @dg.op(
        name=f"{spec.name}__snapshot",
        ins={} if spec.tuning is None else {STUDY: dg.In(dg.Nothing)},
        out={"snapshot": dg.Out(TrainingSet), "inputs_current": dg.Out(is_required=False)},
        description="Freeze the window at one commit: splits, fitted encodings, shards; keep it in the lake.",
        retry_policy=RETRY_TRANSIENT,
    )
    def snapshot(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
        validated: ValidatedWindow,
    ) -> Iterator[Any]:
        from ml_assets.extras.tuning.chosen import chosen_for, require_chosen_on_valid_rows
        from ml_assets.model.steps.snapshot import take_snapshot

        with final_unless_transient():
            window.require_as_validated(spec, tables, context.partition_key, validated)
            yield _inputs_current(current_check, asset, validated)
            chosen = chosen_for(spec, platform, validated.keys)
            if chosen is not None:
                require_chosen_on_valid_rows(spec, platform, chosen)
                context.log.info(f"hyperparameters: {chosen.says}")
            frozen, content = take_snapshot(
                spec,
                platform,
                context.partition_key,
                validated,
                context.run_id,
                chosen,
            )
            yield dg.Output(
                frozen,
                output_name="snapshot",
                metadata=_page(frozen, content, validated, platform),
                data_version=dg.DataVersion(content.digest),
            )

    return snapshot


def _page(
    frozen: TrainingSet, content: Snapshot, validated: ValidatedWindow, platform: Platform
) -> dict[str, Any]:
    rows = [
        {"split": name, "partitions": len(content.keys(name)), "first": content.keys(name)[0],
         "last": content.keys(name)[-1], "rows": content.rows(name),
         "left out": content.excluded_of(name).total(), "labels known by": content.cutoffs[name]}
        for name in SPLITS
    ]  # fmt: skip
    return {
        "splits": table_of(rows),
        "inputs": table_of(validated.inputs),
        "left out": dg.MetadataValue.json(content.excluded),
        "dagster/row_count": sum(content.rows(name) for name in SPLITS),
        "snapshot": content.digest,
        **commit_facts(platform.lake, frozen.commit),
        "lake/branch": frozen.branch,
        "fingerprint": frozen.job.fingerprint,
        "split_config_hash": content.split_config_hash,
        "fitted_digest": content.fitted_digest,
        "schema_hash": content.schema_hash,
        "shards": len(content.shards),
        **({} if frozen.initial is None else {"initial version": frozen.initial.version}),
        **({} if frozen.choice is None else study_facts(frozen.choice)),
        **({"values": frozen.values_from} if frozen.values_from else {}),
        "days seen": f"{frozen.seen}",
    }


def _inputs_current(name: str, asset: dg.AssetKey, validated: ValidatedWindow) -> dg.AssetCheckResult:
    stale, count = validated.stale, len(validated.keys)
    said = f"{len(stale)} of {count} partitions are stale; the training uses them as they are on main"
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=not stale,
        severity=dg.AssetCheckSeverity.WARN,
        description=said if stale else f"all {count} partitions are current, at any depth",
        metadata={"stale": table_of([{"partition": key, "why": why} for key, why in stale.items()])},
    )

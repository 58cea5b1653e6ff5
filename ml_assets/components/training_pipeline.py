"""`TrainingPipeline`: from validated features to a registered model, as one execution set.

The four assets always run together: materializing any of them runs the five steps. So every registered model was
validated, trained and evaluated in the same run.
"""

from collections.abc import Mapping

import dagster as dg

from ml_assets.components.assets.hyperparameters import study_asset, study_key
from ml_assets.components.assets.predictions import live_asset, predictions_asset
from ml_assets.components.base import (
    SpecComponent,
    condition_named,
    freshness_policy,
    lookback_mapping,
    partitions_definition,
)
from ml_assets.components.checks.skew import served_skew_check, served_skew_sensor, skew_check, skew_sensor
from ml_assets.components.metadata import (
    COUNTED_DRIFT,
    DAYS_BEGIN_IN,
    EVALUATED_SLICES,
    LABEL_IS_CLASS,
    NAMED_COLUMNS,
    PARTITION,
    TRAINS,
)
from ml_assets.components.pipeline_steps import (
    STUDY,
    evaluate_op,
    register_op,
    snapshot_op,
    train_op,
    validate_inputs_op,
)
from ml_assets.components.scaffold.scaffolders import TrainingPipelineScaffolder
from ml_assets.components.sensors.models import (
    canary_sensor,
    production_asset,
    release_sensor,
    retrain_sensor,
)
from ml_assets.components.specs import ScheduleSection, TrainingPipelineSpec
from ml_assets.dagster_host.event_log import NOT_FINISHED_STATUSES
from ml_assets.dagster_host.yaml_documents import to_yaml
from ml_assets.data.tables.user_code import resolve_latest
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.steps.retraining import TABLE_DRIFT

STAGES = ("training_set", "checkpoint", "evaluation", "registered_model")
TRAINING_SET, CHECKPOINT, EVALUATION, REGISTERED_MODEL = STAGES

_DESCRIPTIONS = {
    TRAINING_SET: "An immutable snapshot of the window: splits, fitted encodings and shards.",
    CHECKPOINT: "Weights with the best validation loss, trained with torchrun.",
    EVALUATION: "Holdout metrics beside the champion, the naive baseline and a regression, and the gate decision.",
    REGISTERED_MODEL: "A registered version with its bundle; not materialized if a gate rejects it.",
}
_KINDS = {
    TRAINING_SET: ("arrow",),
    CHECKPOINT: ("pytorch",),
    EVALUATION: ("python",),
    REGISTERED_MODEL: ("mlflow", "onnx"),
}


@dg.scaffold_with(TrainingPipelineScaffolder)
class TrainingPipeline(SpecComponent):
    """Train, evaluate and register a model on dated features."""

    spec_type = TrainingPipelineSpec
    produces = ("asset", "asset_check", "job", "schedule", "sensor")
    spec: TrainingPipelineSpec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the execution set, its job and, if declared, its schedule."""
        spec = self.spec
        pipeline = training_assets(spec)
        registered = stage_key(spec, REGISTERED_MODEL)
        live = production_asset(spec, registered)
        assets: list[dg.AssetsDefinition | dg.AssetSpec] = [pipeline, live]
        checks: list[dg.AssetChecksDefinition] = []
        sensors = [release_sensor(spec, live.key)]
        selection = dg.AssetSelection.assets(*pipeline.keys)
        upstream = selection.upstream()
        if spec.tuning is not None:
            assets.append(study_asset(spec, spec.tuning))
            upstream -= dg.AssetSelection.assets(study_key(spec.name))  # no job runs a study: many trainings
        if (scoring := spec.scoring) is not None:
            measured = live_asset(spec, scoring)
            assets += [predictions_asset(spec, scoring), measured]
            if scoring.retrain is not None:
                sensors.append(retrain_sensor(spec, scoring.retrain, list(pipeline.keys), measured.key))
        if (canary := spec.release.canary) is not None and canary.watch:
            sensors.append(canary_sensor(spec, canary.every_seconds, registered))
        if spec.skew is not None:
            checks.append(skew_check(spec, spec.skew, live.key))
            sensors.append(skew_sensor(spec, spec.skew, live.key))
        if spec.served_skew is not None:
            checks.append(served_skew_check(spec, spec.served_skew, live.key))
            sensors.append(served_skew_sensor(spec, spec.served_skew, live.key))
        # A scheduled run also materializes everything upstream. Dagster runs all assets of a job for the same
        # partition, so all dated tables of a scheduled model have the model's partitions.
        job = dg.define_asset_job(
            f"{TRAINS}{spec.name}",
            selection=upstream if spec.schedule else selection,
            description=f"From {'the sources' if spec.schedule else 'features'} to the registry.",
        )
        return dg.Definitions(
            assets=assets,
            asset_checks=checks,
            jobs=[job],
            schedules=[nightly_training(spec, spec.schedule, job.name)] if spec.schedule else [],
            sensors=sensors,
        )


def stage_key(spec: TrainingPipelineSpec, stage: str) -> dg.AssetKey:
    """Return the asset key `<model>/<stage>`."""
    return dg.AssetKey([spec.name, stage])


def whole_model(model: str) -> str:
    """Return the selection of a model's four assets, by name, since further assets stand beside them."""
    return ",".join(f"{model}/{stage}" for stage in STAGES)


def together(model: str) -> str:
    """Return the sentence with the command that selects the four assets, none of which runs without the others."""
    return f"Materialized together with the model's other three assets: `dg launch --assets {whole_model(model)}`."


def training_assets(spec: TrainingPipelineSpec) -> dg.AssetsDefinition:
    """Return the four assets that the five steps make."""
    keys = {stage: stage_key(spec, stage) for stage in STAGES}
    features_key = dg.AssetKey(spec.features.table.split("/"))
    inputs_current = dg.AssetCheckSpec(
        "inputs_current", asset=keys[TRAINING_SET], description="Features made from what main holds now."
    )
    gate = dg.AssetCheckSpec(
        "gate", asset=keys[EVALUATION], description="The decision of the declared gates."
    )
    validate_inputs = validate_inputs_op(spec)
    snapshot = snapshot_op(spec, inputs_current.name, keys[TRAINING_SET])
    train = train_op(spec, keys[CHECKPOINT])
    evaluate = evaluate_op(spec, gate.name, keys[EVALUATION])
    register = register_op(spec, keys[REGISTERED_MODEL])
    checks = {spec.get_python_identifier(): spec for spec in (inputs_current, gate)}
    kinds = _KINDS if spec.model.function else {**_KINDS, CHECKPOINT: ("python",)}

    def steps(features, *study):
        validated = validate_inputs.alias("validate_inputs")(features)
        frozen = snapshot.alias("snapshot")(validated, **dict(zip((STUDY,), study, strict=False)))
        trained = train.alias("train")(frozen[0])
        evaluated = evaluate.alias("evaluate")(frozen[0], trained)
        registered = register.alias("register")(frozen[0], trained, evaluated[0])
        outputs = (frozen[0], trained, evaluated[0], registered, frozen[1], evaluated[1])
        return dict(zip((*STAGES, *checks), outputs, strict=True))

    # Dagster reads the names of a graph's inputs from its signature.
    def without_study(features):
        return steps(features)

    def with_study(features, study):
        return steps(features, study)

    study = () if spec.tuning is None else (study_key(spec.name),)
    made = dg.graph(name=spec.name, out={name: dg.GraphOut() for name in (*STAGES, *checks)})
    pipeline = made(with_study if study else without_study)

    assets = dg.AssetsDefinition.from_graph(
        pipeline,
        keys_by_input_name={"features": features_key, **dict(zip((STUDY,), study, strict=False))},
        keys_by_output_name=keys,
        internal_asset_deps={
            TRAINING_SET: {features_key},
            CHECKPOINT: {keys[TRAINING_SET], *study},
            EVALUATION: {keys[TRAINING_SET], keys[CHECKPOINT]},
            REGISTERED_MODEL: {keys[CHECKPOINT], keys[EVALUATION]},
        },
        partitions_def=partitions_definition(spec.partitions),
        partition_mappings={"features": lookback_mapping(spec.window.total - 1)},
        check_specs=list(checks.values()),
        group_name=spec.group_name,
        descriptions_by_output_name={
            stage: f"{text} {together(spec.name)}" for stage, text in _DESCRIPTIONS.items()
        },
        tags_by_output_name={
            stage: {f"dagster/kind/{kind}": "" for kind in kinds[stage]} for stage in STAGES
        },
        owners_by_output_name={stage: list(spec.owners) for stage in STAGES},
        automation_conditions_by_output_name={
            stage: condition_named(spec.automation_condition, *study) for stage in STAGES
        },
        can_subset=False,
        metadata_by_output_name={
            TRAINING_SET: {
                "lake/table": spec.features.table,
                NAMED_COLUMNS: {spec.features.table: spec.columns},
                DAYS_BEGIN_IN: spec.features.time_zone,
                **({LABEL_IS_CLASS: True} if facts_of(spec.evaluation.objective).has_classes else {}),
                **_evaluated_slices(spec),
                **_counted_drift(spec),
            }
        },
    )
    if spec.freshness is None:
        return assets
    return assets.map_asset_specs(
        lambda asset: (
            asset.replace_attributes(freshness_policy=freshness_policy(spec.freshness))
            if asset.key == keys[REGISTERED_MODEL]
            else asset
        )
    )


def _counted_drift(spec: TrainingPipelineSpec) -> Mapping[str, Mapping[str, str]]:
    retrain = None if spec.scoring is None else spec.scoring.retrain
    for n, rule in enumerate([] if retrain is None else retrain.when):
        if rule.metric == TABLE_DRIFT:
            return {COUNTED_DRIFT: {spec.features.table: f"scoring.retrain.when.{n}.metric"}}
    return {}


def _evaluated_slices(spec: TrainingPipelineSpec) -> Mapping[str, Mapping[str, str]]:
    evaluation = spec.evaluation
    if not evaluation.sliced_by:
        return {}
    gates = spec.release.gates
    declared = {
        "evaluation": evaluation.model_dump(exclude_defaults=True),
        "transitions": {} if gates is None else gates.model_dump(exclude_defaults=True),
    }
    return {EVALUATED_SLICES: {spec.features.table: to_yaml(declared)}}


def nightly_training(
    spec: TrainingPipelineSpec, schedule: ScheduleSection, job_name: str
) -> dg.ScheduleDefinition:
    """Return the schedule that trains the newest complete partition of the source.

    A tick skips, with the reason, if that partition is trained already, or if a run of an earlier tick trains it.
    """
    evaluation = stage_key(spec, EVALUATION)
    latest = resolve_latest(schedule.latest)
    cadence = spec.partitions.as_cadence

    @dg.schedule(
        name=f"{job_name}_schedule",
        cron_schedule=schedule.cron,
        execution_timezone=schedule.time_zone,
        job_name=job_name,
        default_status=dg.DefaultScheduleStatus.RUNNING
        if schedule.enabled
        else dg.DefaultScheduleStatus.STOPPED,
        description=f"Trains {spec.name} on the latest day of its source.",
    )
    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        day = latest()
        complete = cadence.complete(day)
        if not complete:
            return dg.SkipReason(
                f"the latest day of the source, {day}, is before the first partition of {spec.name}"
            )
        if complete[-1] in context.instance.get_materialized_partitions(evaluation):
            return dg.SkipReason(
                f"nothing new: {spec.name} {complete[-1]} is trained, and the latest day of the source is {day}"
            )
        under_way = dg.RunsFilter(
            job_name=job_name, tags={PARTITION: complete[-1]}, statuses=NOT_FINISHED_STATUSES
        )
        if context.instance.get_runs_count(under_way):
            return dg.SkipReason(f"{spec.name} {complete[-1]} is being trained by a run of an earlier tick")
        return dg.RunRequest(run_key=complete[-1], partition_key=complete[-1])

    return tick

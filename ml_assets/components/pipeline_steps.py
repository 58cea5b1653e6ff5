"""Five steps of a training pipeline, one op each: validate_inputs → snapshot → train → evaluate → register.

Here: calling a stage, and the page of its result in Dagster. Not here: the work of a stage (`ml_assets.model.steps`).
Steps pass small JSON values to each other; data and weights are in the lake and the artifact folders.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets.components.base import signed
from ml_assets.components.failures import RETRY_TRANSIENT, comes_back, final_unless_transient
from ml_assets.components.metadata import CONTINUES, RANGE_END, RANGE_START, REGISTERS, RESOURCES
from ml_assets.components.pages import (
    RunPage,
    bullets,
    commit_facts,
    readable,
    report_facts,
    rules_table,
    study_facts,
    table_of,
    tracked_facts,
)
from ml_assets.components.restores import Restores
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import BuildRefused
from ml_assets.foundation.links import report_page, review_page
from ml_assets.model.evaluation.report.report import headline_markdown, summary_markdown
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.steps import window
from ml_assets.model.steps.values import (
    EvaluatedModel,
    RegisteredModel,
    TrainedModel,
    TrainingSet,
    ValidatedWindow,
)
from resources.addresses import Address
from resources.artifacts import ArtifactMissing, Artifacts, ArtifactsError
from resources.job.events import TrainingEvent, read_events, recoveries_of
from resources.job.job import TrainingResult
from resources.launcher.resource_profile import changes_of
from resources.ledger import evaluation_name
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
    @signed
    def validate_inputs(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> ValidatedWindow:
        with final_unless_transient(platform.settings):
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
    @signed
    def snapshot(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
        validated: ValidatedWindow,
    ) -> Iterator[Any]:
        from ml_assets.extras.tuning.chosen import chosen_for, require_chosen_on_valid_rows
        from ml_assets.model.steps.foreign import require_asked, stored_foreign
        from ml_assets.model.steps.snapshot import take_snapshot

        with final_unless_transient(platform.settings):
            window.require_as_validated(spec, tables, context.partition_key, validated)
            yield _inputs_current(current_check, asset, validated)
            foreign = None
            if (digest := context.get_tag(REGISTERS)) is not None:
                foreign = stored_foreign(platform.artifacts, spec.name, digest)
                require_asked(foreign, context.partition_key)
            chosen = None if foreign is not None else chosen_for(spec, platform, validated.keys)
            if chosen is not None:
                require_chosen_on_valid_rows(spec, platform, chosen)
                context.log.info(f"hyperparameters: {chosen.says}")
            restores = Restores.of(context.run.tags)
            frozen, content = take_snapshot(
                spec,
                platform,
                context.partition_key,
                validated,
                context.run_id,
                chosen,
                None if restores is None else restores.state,
                foreign,
            )
            yield dg.Output(
                frozen,
                output_name="snapshot",
                metadata=_training_set_page(frozen, content, validated, platform),
                data_version=dg.DataVersion(content.digest),
            )

    return snapshot


def _training_set_page(
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
        READ_DIGEST: frozen.read,
        **({} if frozen.initial is None else {"initial version": frozen.initial.version}),
        **origin_facts(frozen),
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


SETTINGS_DIGEST = "settings_digest"
"""Metadata of a checkpoint: digest of everything that decides it except the data. `ml-assets plan` compares it with the
declaration."""
READ_DIGEST, READ_AT = "read_digest", "read_at"
"""Metadata of a checkpoint: digest of the values that its training read, and the commit at which this run read them.
`ml-assets plan` compares them with main."""


RESTORED = "restored from"
"""Metadata of a training set and its checkpoint: the state with which the training began; absent for step 0."""


ELSEWHERE = "trained elsewhere"
"""Metadata of a training set and its checkpoint: digest of the document of a model that was trained elsewhere; absent
for trainings."""


def origin_facts(frozen: TrainingSet) -> dict[str, str]:
    """Return the metadata of a training that begins with a checkpoint, or of a model that was trained elsewhere."""
    job = frozen.job
    return {
        **({} if job.restored is None else {RESTORED: job.restored.in_words}),
        **({ELSEWHERE: job.foreign} if job.foreign else {}),
    }


def train_op(spec: TrainingPipelineSpec, checkpoint: dg.AssetKey) -> dg.OpDefinition:
    """Return the op that runs the workers. The run page and the tracker show the loss while they train."""

    @dg.op(
        name=f"{spec.name}__train",
        out=dg.Out(),
        description="Train with torchrun; live metrics on this page and in MLflow.",
        retry_policy=RETRY_TRANSIENT,
    )
    @signed
    def train(
        context: dg.OpExecutionContext, platform: dg.ResourceParam[Platform], training_set: TrainingSet
    ) -> dg.Output[TrainedModel]:
        from ml_assets.model.steps.foreign import take_foreign
        from ml_assets.model.steps.train import train_model

        with final_unless_transient(platform.settings):
            if training_set.job.foreign:
                taken = take_foreign(spec, platform, training_set)
                return dg.Output(
                    taken,
                    metadata={
                        **origin_facts(training_set),
                        "days seen, as declared": f"{training_set.seen}",
                        "ONNX file": taken.result.weights_sha256,
                        **tracked_facts(platform.tracker.uri, taken.mlflow_run),
                    },
                    data_version=dg.DataVersion(taken.result.weights_sha256),
                )
            trained = train_model(
                spec,
                platform,
                training_set,
                RunPage(context, checkpoint, partition=context.partition_key),
                run_id=context.run_id,
                resources=changes_of(context.get_tag(RESOURCES) or ""),
                comes_back=comes_back,
            )
            folder = Path(trained.folder)
            return dg.Output(
                trained,
                metadata={
                    **_training_figures(trained.result),
                    **_survived(read_events(folder)),
                    **_used(platform.artifacts, training_set),
                    "reused": trained.is_reused,
                    SETTINGS_DIGEST: training_set.settings,
                    READ_DIGEST: training_set.read,
                    READ_AT: training_set.source_commit,
                    **origin_facts(training_set),
                    **({} if training_set.choice is None else study_facts(training_set.choice)),
                    **tracked_facts(platform.tracker.uri, trained.mlflow_run),
                    "folder": dg.MetadataValue.path(folder),
                },
                data_version=dg.DataVersion(trained.result.weights_sha256),
            )

    return train


def _survived(events: Iterable[TrainingEvent]) -> dict[str, Any]:
    """Return metadata of the training's interruptions and their cost; empty without interruptions."""
    said = [recovery.in_words() for recovery in recoveries_of(events)]
    return {"recoveries": bullets(said)} if said else {}


def _used(artifacts: Artifacts, training_set: TrainingSet) -> dict[str, Any]:
    """Return metadata of what the training reserved; empty without a record, or if the store is away."""
    from ml_assets.model.steps.usage import read_usage

    try:
        record = read_usage(artifacts, training_set.job.model, training_set.job.fingerprint)
    except ArtifactsError:
        record = None
    if record is None:
        return {}
    return {
        "gpu hours": readable(sum(one.gpu_hours for one in record.attempts)),
        "core hours": readable(sum(one.core_hours for one in record.attempts)),
        "goodput": readable(record.goodput.share),
        **({} if (chosen := record.attempts[-1].interval) is None else {"checkpoints": chosen.in_words()}),
        "wall time": bullets(
            f"{name.replace('_', ' ')}: {seconds:.1f} s" for name, seconds in asdict(record.goodput).items()
        ),
    }


def _training_figures(result: TrainingResult) -> dict[str, Any]:
    return {
        "best validation loss": readable(result.best_validation_loss),
        "best step": result.best_step,
        "steps": result.steps,
        **({"epochs": result.epochs} if result.epochs else {}),
        "world size": result.world_size,
        **({"rows per second": readable(result.rows_per_second)} if result.epochs else {}),
        "seconds": readable(result.seconds),
        "attempts": result.attempts,
        **(
            {"resumed from steps": dg.MetadataValue.json(resumed)}
            if (resumed := [*result.resumed_from_steps])
            else {}
        ),
        "weights": result.weights_sha256,
    }


def evaluate_op(spec: TrainingPipelineSpec, gate: str, evaluation: dg.AssetKey) -> dg.OpDefinition:
    """Return the op that evaluates a model and records the decision. A rejection is a normal result of a green run."""

    @dg.op(
        name=f"{spec.name}__evaluate",
        out={"evaluation": dg.Out(EvaluatedModel), "gate": dg.Out(is_required=False)},
        description="Score challenger, champion, naive baseline and a regression on the same holdout; apply the gates.",
        retry_policy=RETRY_TRANSIENT,
    )
    @signed
    def evaluate(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        training_set: TrainingSet,
        trained: TrainedModel,
    ) -> Iterator[Any]:
        from ml_assets.model.steps.evaluate import evaluate_model

        with final_unless_transient(platform.settings):
            tags = context.run.tags
            continues = [tags[name] for name in CONTINUES if name in tags]
            evaluated, report = evaluate_model(
                spec, platform, training_set, trained, context.run_id, continues
            )
            yield dg.AssetCheckResult(
                asset_key=evaluation,
                check_name=gate,
                passed=evaluated.status == "blessed",
                severity=dg.AssetCheckSeverity.WARN,
                description=evaluated.summary,
                metadata={
                    "reasons": bullets(report.evaluation.decision.reasons),
                    "rules": rules_table(evaluated.rules),
                    **{f"rules_before_{one.to}": rules_table(one.rules) for one in evaluated.transitions},
                },
            )
            yield dg.Output(
                evaluated,
                output_name="evaluation",
                metadata=_evaluation_page(evaluated, report, platform),
                data_version=dg.DataVersion(evaluated.decided_by),
            )

    return evaluate


def _evaluation_page(evaluated: EvaluatedModel, report: Report, platform: Platform) -> dict[str, Any]:
    from ml_assets.model.steps.record import figures_beside

    figures = report.evaluation.values() | figures_beside(report) | report.evaluation.serving_values
    page = report_page(platform.settings.ui_url, evaluated.report)
    above = {
        "summary": dg.MetadataValue.md(summary_markdown(report)),
        "decision": evaluated.status,
        "why": evaluated.summary,
        **({} if report.naive is None else {"naive": report.naive.chosen}),
    }
    below = {
        "evaluation": evaluation_name(evaluated.evaluation),
        **report_facts(page, evaluated.report_file),
        "bundle": evaluated.bundle,
    }
    # An own metric may have any name, such as that of an entry of this page.
    shown = {
        f"metric {name}" if name in above | below else name: readable(value)
        for name, value in figures.items()
    }
    return above | shown | below


def register_op(spec: TrainingPipelineSpec, registered_model: dg.AssetKey) -> dg.OpDefinition:
    """Return the op that registers a blessed or undecided model. For a rejected model it logs an observation."""

    @dg.op(
        name=f"{spec.name}__register",
        out=dg.Out(RegisteredModel, is_required=False),
        description="Register the bundle in MLflow unless a gate rejected it.",
        retry_policy=RETRY_TRANSIENT,
    )
    @signed
    def register(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        training_set: TrainingSet,
        trained: TrainedModel,
        evaluated: EvaluatedModel,
    ) -> Iterator[Any]:
        from ml_assets.model.steps.register import register_model

        with final_unless_transient(platform.settings):
            version = register_model(spec, platform, training_set, trained, evaluated)
            if version is None:
                context.log.warning(f"not registered: {evaluated.summary}")
                context.log_event(_why_not(registered_model, context.partition_key, evaluated, platform))
                return
            yield dg.Output(
                version,
                metadata=_version_page(spec.name, version, training_set, trained, platform),
                data_version=dg.DataVersion(version.bundle),
            )

    return register


def _why_not(
    asset: dg.AssetKey, partition: str, evaluated: EvaluatedModel, platform: Platform
) -> dg.AssetObservation:
    """Return an observation for the registered model's page: failed rules, and conditions under which they pass."""
    told = [
        f"“{one.rule}” on {one.slice}: {one.found}; would pass: {one.would_pass}" for one in evaluated.failed
    ]
    page = report_page(platform.settings.ui_url, evaluated.report)
    return dg.AssetObservation(
        asset,
        partition=partition,
        description="\n".join([f"Not registered: {evaluated.summary}", *told]),
        metadata={
            "decision": "rejected",
            "why": evaluated.summary,
            "failed": rules_table(evaluated.failed),
            **report_facts(page, evaluated.report_file),
        },
    )


def _version_page(
    model: str, version: RegisteredModel, training_set: TrainingSet, trained: TrainedModel, platform: Platform
) -> dict[str, Any]:
    page, card = (
        report_page(platform.settings.ui_url, version.report, file)
        for file in ("report.html", "model_card.html")
    )
    place = f"models/{model}/versions/{version.number}"
    evaluated = {
        "gate": version.gate,
        "model_card": dg.MetadataValue.url(card),
        **report_facts(page, version.report_file),
        "evaluation": version.evaluation,
    }
    return {
        **_figures(model, version, platform),
        "version": version.number,
        "semantic_version": version.semantic,
        "next": _next(model, version, platform.settings.review_url),
        **(evaluated if version.evaluation else {}),
        **_dossier(model, version),
        "lake/branch": version.branch,
        **tracked_facts(platform.tracker.uri, trained.mlflow_run, place),
        **commit_facts(platform.lake, training_set.commit),
        "bundle": version.bundle,
    }


def _figures(model: str, version: RegisteredModel, platform: Platform) -> dict[str, Any]:
    """Return the figures of the evaluation that counts, beside the other models; empty if its report cannot be read."""
    from ml_assets.model.steps.record import ReportUnreadable, recorded_report

    rows = platform.ledger.models.evaluations(model)
    row = next((one for one in reversed(rows) if one.name == version.evaluation), None)
    try:
        report = None if row is None else recorded_report(platform, row)
    except (ArtifactMissing, ReportUnreadable):  # written before this version of the platform, or deleted
        return {}
    return {} if report is None else {"summary": dg.MetadataValue.md(headline_markdown(report))}


def _dossier(model: str, version: RegisteredModel) -> dict[str, Any]:
    """Return where the signed dossier lies, and the command that exports it; empty if no key is set."""
    if not version.dossier:
        return {}
    return {
        "dossier": version.dossier,
        "dossier_files": version.dossier_files,
        "dossier_export": f"ml-assets dossier export {model} {version.number} FOLDER",
    }


def _next(model: str, version: RegisteredModel, review_url: Address | None) -> str:
    """Return the next action for the version, such as the command that promotes it."""
    if version.is_in_production:
        return "in production"
    if not version.may_be_promoted:
        return "none: an undecided version cannot be promoted"
    if version.waits_for_approval:
        page = "ml-assets review" if review_url is None else review_page(review_url, model, version.number)
        return f"ml-assets approve {model} {version.number} --reason '…', or on the page of reviews: {page}"
    promote = f"ml-assets promote {model} {version.number} --reason '…'"
    return f"to promote it again: {promote}" if version.was_promoted else promote

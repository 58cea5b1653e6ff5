"""Step 5 for Dagster: the page of the registered version, or an observation with the reason why there is none."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import commit_facts, report_facts, rules_table, tracked_facts
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.foundation.links import report_page, review_page
from ml_assets.model.steps.values import EvaluatedModel, RegisteredModel, TrainedModel, TrainingSet
from resources.addresses import Address
from resources.platform import Platform


def register_op(spec: TrainingPipelineSpec, registered_model: dg.AssetKey) -> dg.OpDefinition:
    """Return the op that registers a blessed or undecided model. For a rejected model it logs an observation."""

    @dg.op(
        name=f"{spec.name}__register",
        out=dg.Out(RegisteredModel, is_required=False),
        description="Register the bundle in MLflow unless a gate rejected it.",
        retry_policy=RETRY_TRANSIENT,
    )
    def register(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        training_set: TrainingSet,
        trained: TrainedModel,
        evaluated: EvaluatedModel,
    ) -> Iterator[Any]:
        from ml_assets.model.steps.register import register_model

        with final_unless_transient():
            version = register_model(spec, platform, training_set, trained, evaluated)
            if version is None:
                context.log.warning(f"not registered: {evaluated.summary}")
                context.log_event(_why_not(registered_model, context.partition_key, evaluated, platform))
                return
            yield dg.Output(
                version,
                metadata=_page(spec.name, version, training_set, trained, platform),
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


def _page(
    model: str, version: RegisteredModel, training_set: TrainingSet, trained: TrainedModel, platform: Platform
) -> dict[str, Any]:
    page, card = (
        report_page(platform.settings.ui_url, version.report, file)
        for file in ("report.html", "model_card.html")
    )
    place = f"models/{model}/versions/{version.number}"
    return {
        "version": version.number,
        "semantic_version": version.semantic,
        **({"gate": version.gate, "evaluation": version.evaluation} if version.evaluation else {}),
        "next": _next(model, version, platform.settings.review_url),
        "bundle": version.bundle,
        **tracked_facts(platform.tracker.uri, trained.mlflow_run, place),
        **commit_facts(platform.lake, training_set.commit),
        "lake/branch": version.branch,
        **_dossier(model, version),
        **(
            report_facts(page, version.report_file) | {"model_card": dg.MetadataValue.url(card)}
            if version.evaluation
            else {}
        ),
    }


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

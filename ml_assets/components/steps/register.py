"""Step 5: register what the gates did not reject, and keep its input for as long as the version lives."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import (
    commit_facts,
    report_facts,
    report_page,
    run_url,
    table_of,
    tracked_facts,
)
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.steps.evaluation import report_name
from ml_assets.components.steps.inputs import rejected_since
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.release.registry import RegisteredVersion
    from ml_assets.release.standing import Standing
    from resources.ledger import EvaluationRow


def register_op(spec: TrainingPipelineSpec, registered_model: dg.AssetKey) -> dg.OpDefinition:
    """A version when blessed or undecided; an observation that says why not when rejected."""

    @dg.op(
        name=f"{spec.name}__register",
        out=dg.Out(is_required=False),
        description="Register the bundle in MLflow unless a gate rejected it.",
        retry_policy=RETRY_TRANSIENT,
    )
    def register(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        snapshot: dict[str, Any],
        checkpoint: dict[str, Any],
        evaluation: dict[str, Any],
    ) -> Iterator[Any]:
        with final_unless_transient():
            if evaluation["status"] == "rejected":
                from ml_assets.release.parts import releases_of

                releases_of(platform).show(
                    spec.name
                )  # a version made of an earlier evaluation is rejected now
                context.log.warning(f"not registered: {evaluation['summary']}")
                context.log_event(_why_not(registered_model, context.partition_key, evaluation))
                return
            yield register_version(spec, platform, context.partition_key, snapshot, checkpoint, evaluation)

    return register


def _why_not(asset: dg.AssetKey, partition: str, evaluation: dict[str, Any]) -> dg.AssetObservation:
    """Rule, slice, margin and what would pass, on the page of the version that was not made."""
    failed: list[dict[str, str]] = evaluation["failed"]
    told = [
        f"“{rule['rule']}” on {rule['slice']}: {rule['found']}; would pass: {rule['would pass']}"
        for rule in failed
    ]
    return dg.AssetObservation(
        asset,
        partition=partition,
        description="\n".join([f"Not registered: {evaluation['summary']}", *told]),
        metadata={
            "decision": "rejected",
            "why": evaluation["summary"],
            "failed": table_of(failed),
            **report_facts(evaluation["report"], evaluation["report_file"]),
        },
    )


def register_version(
    spec: TrainingPipelineSpec,
    platform: Platform,
    partition: str,
    snapshot: dict[str, Any],
    checkpoint: dict[str, Any],
    evaluation: dict[str, Any],
) -> dg.Output[dict[str, Any]]:
    """The registered version as the asset's output. `dg.Failure` names what its window holds and is rejected by now."""
    from ml_assets.release.inputs import InputsRejected
    from ml_assets.release.parts import bundles_of, releases_of
    from ml_assets.snapshots.keep import version_branch

    bundle = bundles_of(platform).open(evaluation["bundle"])
    releases = releases_of(platform)
    links = {
        "partition": partition,
        "lake_commit": snapshot["commit"],
        "dagster_run": snapshot["run_id"],
        "dagster_url": run_url(platform.settings.ui_url, snapshot["run_id"]),
    }
    try:
        version = releases.register(bundle, run_id=checkpoint["mlflow_run"], links=links)
    except InputsRejected as error:
        raise rejected_since(spec, partition, error.refused, is_trained=True) from error
    # The version's own branch first: at no moment is its input without a root.
    kept = version_branch(spec.name, version.number, bundle.digest)
    platform.lake.keep(kept, snapshot["commit"])
    platform.lake.release(snapshot["branch"])
    found = releases.standing(spec.name, bundle.digest)
    shown = found.shown
    facts = {
        "version": version.number,
        "semantic_version": version.semantic,
        **({} if shown is None else {"gate": shown.status, "evaluation": shown.name}),
    }
    return dg.Output(
        facts,
        metadata={
            **facts,
            "next": _next(version, found),
            "bundle": bundle.digest,
            **tracked_facts(
                platform.tracker.uri,
                checkpoint["mlflow_run"],
                f"models/{spec.name}/versions/{version.number}",
            ),
            **commit_facts(platform.lake, snapshot["commit"]),
            "lake/branch": kept,
            **({} if shown is None else report_facts(_page_of(shown, platform), shown.report)),
        },
        data_version=dg.DataVersion(bundle.digest),
    )


def _page_of(shown: "EvaluationRow", platform: Platform) -> str:
    name = report_name(shown.model, shown.partition, shown.evaluation_digest)
    return report_page(platform.settings.ui_url, name)


def _next(version: "RegisteredVersion", found: "Standing") -> str:
    """Return what a person can do with the version now."""
    if found.is_in_production:
        return "in production"
    if not found.may_be_promoted:
        return "undecided: cannot be promoted"
    promote = f"ml-assets promote {version.model} {version.number} --reason '…'"
    return f"{promote} goes back to it" if found.promotion else promote

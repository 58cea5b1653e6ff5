"""Step 4 for Dagster: the gate check, and the page of the evaluation."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import bullets, readable, report_facts, rules_table
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.foundation.links import report_page
from ml_assets.model.evaluation.report.report import summary_markdown
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.steps.values import EvaluatedModel, TrainedModel, TrainingSet
from resources.ledger import evaluation_name
from resources.platform import Platform


def evaluate_op(spec: TrainingPipelineSpec, gate: str, evaluation: dg.AssetKey) -> dg.OpDefinition:
    """Return the op that evaluates a model and records the decision. A rejection is a normal result of a green run."""

    @dg.op(
        name=f"{spec.name}__evaluate",
        out={"evaluation": dg.Out(EvaluatedModel), "gate": dg.Out(is_required=False)},
        description="Score challenger, champion, naive baseline and a regression on the same holdout; apply the gates.",
        retry_policy=RETRY_TRANSIENT,
    )
    def evaluate(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        training_set: TrainingSet,
        trained: TrainedModel,
    ) -> Iterator[Any]:
        from ml_assets.model.steps.evaluate import evaluate_model

        with final_unless_transient():
            evaluated, report = evaluate_model(spec, platform, training_set, trained, context.run_id)
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
                metadata=_page(evaluated, report, platform),
                data_version=dg.DataVersion(evaluated.decided_by),
            )

    return evaluate


def _page(evaluated: EvaluatedModel, report: Report, platform: Platform) -> dict[str, Any]:
    from ml_assets.model.steps.record import figures_beside

    figures = report.evaluation.values() | figures_beside(report) | report.evaluation.serving_values
    page = report_page(platform.settings.ui_url, evaluated.report)
    above = {
        "summary": dg.MetadataValue.md(summary_markdown(report)),
        "decision": evaluated.status,
        "why": evaluated.summary,
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

"""An evaluation that was made, kept and shown: its folder, its row in the ledger, the tracker, the asset page.

Here: nothing that measures or judges; that is `evaluate`.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.components.pages import REPORTS, readable, report_facts, report_page, table_of
from ml_assets.components.specs import TrainingPipelineSpec
from resources.ledger import EvaluationRow, NewEvaluation, TrainedOn, evaluation_name
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.evaluation.report import ReportFiles
    from ml_assets.evaluation.result import Report, Role
    from ml_assets.evaluation.spec import EvaluationSpec
    from ml_assets.release.store import Bundle


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One evaluation, before it is kept."""

    bundle: "Bundle"
    """The challenger's."""
    report: "Report"
    champion_digest: str | None
    """Bundle of the champion it was compared with; None without one."""
    trained_on: TrainedOn


def report_name(model: str, partition: str, evaluation: str) -> str:
    """Name among the artifacts of report and JSON of one evaluation, by its digest: no other has this folder."""
    return f"{REPORTS}/{model}/{partition}/{evaluation_name(evaluation)}"


def data_version_of(judged: Judged, rules: "EvaluationSpec") -> str:
    """SHA-256 of all that decided: the challenger (which names its holdout), the champion, and the rules."""
    decided_by = {
        "bundle": judged.bundle.digest,
        "champion": judged.champion_digest,
        "rules": rules.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()


def record(judged: Judged, platform: Platform, run_id: str) -> tuple[EvaluationRow, "ReportFiles"]:
    """Keep the report in a folder of its own, then append the decision to the ledger."""
    from ml_assets.evaluation.report import write_report

    report = judged.report
    name = report_name(report.title, report.partition, report.digest)
    files = write_report(report, platform.artifacts.folder(name))
    place = platform.artifacts.push(name, last=files.json.name)
    decision = report.evaluation.decision
    row = platform.ledger.models.record_evaluation(
        NewEvaluation(
            model=report.title,
            partition=report.partition,
            bundle_digest=judged.bundle.digest,
            evaluation_digest=report.digest,
            champion_digest=judged.champion_digest,
            status=decision.status,
            summary=decision.summary,
            report=f"{place}/{files.html.name}",
            run_id=run_id,
            trained_on=judged.trained_on,
        )
    )
    return row, files


def show(
    spec: TrainingPipelineSpec,
    judged: Judged,
    row: EvaluationRow,
    files: "ReportFiles",
    checkpoint: dict[str, Any],
    gate: str,
    evaluation: dg.AssetKey,
    platform: Platform,
) -> Iterator[Any]:
    """Tracker and the asset page."""
    from ml_assets.evaluation.report import summary_markdown

    report, bundle = judged.report, judged.bundle
    decision = report.evaluation.decision
    values = report.evaluation.values()
    compared: tuple[Role, ...] = ("baseline", "reference")
    beside = {
        f"{role}_{name}": value for role in compared for name, value in report.evaluation.values(role).items()
    }
    rules = [
        {
            "rule": rule.rule,
            "slice": rule.slice or "all rows",
            "result": rule.status,
            "asks": f"{rule.metric} {rule.asks}",
            "found": rule.explanation,
            "would pass": rule.would_pass or "",
        }
        for rule in decision.rules
    ]
    run = checkpoint["mlflow_run"]
    platform.tracker.record(run, {f"holdout_{name}": value for name, value in (values | beside).items()})
    page = report_page(platform.settings.ui_url, report_name(row.model, row.partition, row.evaluation_digest))
    newest = {"gate_status": decision.status, "evaluation": row.name, "bundle_digest": bundle.digest}
    platform.tracker.tag(run, newest)
    for file in (files.html, files.json):
        platform.tracker.attach(run, file, f"evaluations/{row.name}")
    yield dg.AssetCheckResult(
        asset_key=evaluation,
        check_name=gate,
        passed=decision.status == "blessed",
        severity=dg.AssetCheckSeverity.WARN,
        description=decision.summary,
        metadata={
            "reasons": dg.MetadataValue.md("\n".join(f"* {reason}" for reason in decision.reasons)),
            "rules": table_of(rules),
        },
    )
    yield dg.Output(
        {
            "status": decision.status,
            "summary": decision.summary,
            "failed": [row for row in rules if row["result"] == "failed"],
            "bundle": bundle.digest,
            "report": page,
            "report_file": row.report,
        },
        output_name="evaluation",
        metadata={
            "summary": dg.MetadataValue.md(summary_markdown(report)),
            "decision": decision.status,
            "why": decision.summary,
            **{name: readable(value) for name, value in values.items()},
            **{name: readable(value) for name, value in beside.items()},
            "evaluation": row.name,
            **report_facts(page, row.report),
            "bundle": bundle.digest,
        },
        data_version=dg.DataVersion(data_version_of(judged, spec.evaluation)),
    )

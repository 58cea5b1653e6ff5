"""Record of an evaluation: its report's folder, its row in the ledger, and its metrics in the tracker's run.

Not here: measurements and decisions (`evaluate`).
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ml_assets.model.evaluation.metrics.metrics import SERVING_NAMES
from ml_assets.model.release.rules import deciding_as_json, gates_as_json
from ml_assets.model.steps.links import report_name
from ml_assets.model.steps.values import EvaluatedModel, TrainedModel, TrainingSet
from resources.acting import launched_in
from resources.ledger import EvaluationRow, NewEvaluation, RuleOutcome, TransitionOutcome
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.model.evaluation.evaluation_document import GateDecision, Role
    from ml_assets.model.evaluation.report_document import Report
    from ml_assets.model.evaluation.spec import EvaluationSpec, Gate
    from ml_assets.model.release.bundle_store import Bundle


@dataclass(frozen=True, kw_only=True)
class UnrecordedEvaluation:
    """Evaluation that is not stored yet."""

    bundle: "Bundle"
    """Bundle of the challenger."""
    report: "Report"
    champion_digest: str | None
    """Bundle of the champion in the comparison; None without a champion."""
    rules: "EvaluationSpec"
    transitions: "Mapping[str, Sequence[Gate]]"
    """Transition → its own gates, as declared."""
    read: str
    """Digest of the columns of the holdout that this evaluation read, beside those of the training."""

    @property
    def decided_by(self) -> str:
        """SHA-256 of all that decided: challenger (it names its holdout), champion, rules, code of own metrics, and
        the columns that only the evaluation reads.

        Latency differs from run to run, so only the results of its rules are part of it.
        """
        measured = self.report.evaluation
        facts = {
            "bundle": self.bundle.digest,
            "champion": self.champion_digest,
            "read": self.read,
            "rules": self.rules.model_dump(mode="json"),
            "transitions": {to: gates_as_json(gates) for to, gates in self.transitions.items()},
            "metrics": [one.code_version for one in measured.own_metrics],
            "serving": [
                one.status
                for decision in (measured.decision, *measured.transitions.values())
                for one in decision.rules
                if one.metric in SERVING_NAMES
            ],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


EVALUATION_FILE = "evaluation.json"
"""File of a report that is written last."""
COMPARED: "tuple[Role, ...]" = ("baseline", "reference")
"""Roles whose metrics are shown beside the challenger's."""


def figures_beside(report: "Report") -> dict[str, float]:
    """Return `<role>_<metric>` → value for the models beside the challenger."""
    measured = report.evaluation
    return {f"{role}_{name}": value for role in COMPARED for name, value in measured.values(role).items()}


def record(
    made: UnrecordedEvaluation,
    platform: Platform,
    training_set: TrainingSet,
    trained: TrainedModel,
    run_id: str,
) -> EvaluatedModel:
    """Store the report in its own folder, append the decision to the ledger, and record metrics in the tracker."""
    from ml_assets.model.evaluation.report.report import write_report
    from ml_assets.model.release.of_platform import releases_of

    report, bundle = made.report, made.bundle
    name = report_name(report.title, report.partition, report.digest)
    if platform.artifacts.exists(name, EVALUATION_FILE):  # written on another machine: it stays as it is
        platform.artifacts.pull(name)
    files = write_report(report, platform.artifacts.folder(name))
    place = platform.artifacts.push(name, last=files.json.name)
    decision = report.evaluation.decision
    row = platform.ledger.models.record_evaluation(
        NewEvaluation(
            model=report.title,
            partition=report.partition,
            bundle_digest=bundle.digest,
            evaluation_digest=report.digest,
            champion_digest=made.champion_digest,
            status=decision.status,
            summary=decision.summary,
            rules=tuple(_rules(decision)),
            gates=deciding_as_json(made.rules.deciding(*chain.from_iterable(made.transitions.values()))),
            transitions=tuple(
                TransitionOutcome(
                    to=to,
                    gates=gates_as_json(made.transitions[to]),
                    status=one.status,
                    summary=one.summary,
                    rules=tuple(_rules(one)),
                )
                for to, one in report.evaluation.transitions.items()
            ),
            by=platform.acting,
            launched_in=launched_in(),
            report=f"{place}/{files.html.name}",
            run_id=run_id,
            trained_on=training_set.trained_on,
            launches=trained.launches,
        )
    )
    # A version that was registered before shows its newest evaluation, also if that rejects it: then no step follows.
    releases_of(platform).show_if_reachable(row.model)
    run, figures = trained.mlflow_run, report.evaluation.values() | figures_beside(report)
    platform.tracker.record(
        run,
        {f"holdout_{name}": value for name, value in figures.items()}
        | {f"serving_{name}": value for name, value in report.evaluation.serving_values.items()},
    )
    newest = {"gate_status": decision.status, "evaluation": row.name, "bundle_digest": bundle.digest}
    platform.tracker.tag(run, newest)
    for file in (files.html, *files.cards, files.json):
        platform.tracker.attach(run, file, f"evaluations/{row.name}")
    return EvaluatedModel(
        status=decision.status,
        summary=decision.summary,
        rules=row.rules,
        transitions=row.transitions,
        bundle=bundle.digest,
        evaluation=row.evaluation_digest,
        decided_by=made.decided_by,
        # From the row: a retried step finds the report that it wrote first.
        report=report_name(row.model, row.partition, row.evaluation_digest),
        report_file=row.report,
    )


class ReportUnreadable(Exception):
    """A stored report has the form of another version of the project, or is damaged."""


def recorded_report(platform: Platform, row: EvaluationRow) -> "Report":
    """Return the report of a recorded evaluation.

    Raises `ArtifactMissing` if its file is gone, and `ReportUnreadable`.
    """
    from pydantic import ValidationError

    from ml_assets.model.evaluation.report_document import Report

    with tempfile.TemporaryDirectory(prefix="ml-assets-") as fetched:
        target = Path(fetched) / "evaluation.json"
        platform.artifacts.fetch(
            report_name(row.model, row.partition, row.evaluation_digest), target.name, target
        )
        content = target.read_bytes()
        if (found := hashlib.sha256(content).hexdigest()) != row.evaluation_digest:
            raise ReportUnreadable(
                f"its SHA-256 is {found[:12]}…, and the ledger has {row.evaluation_digest[:12]}…: it was changed"
            )
        try:
            return Report.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise ReportUnreadable(
                f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"
            ) from error


def checked_file(platform: Platform, row: EvaluationRow, file: str) -> str:
    """Return a file of the report of a recorded evaluation, made from its checked `evaluation.json`.

    `file` is one of those that `write_report` writes. Raises what `recorded_report` does.
    """
    from ml_assets.model.evaluation.report.card import model_card
    from ml_assets.model.evaluation.report.report import render

    report = recorded_report(platform, row)
    match file:
        case "report.html":
            return render(report)
        case "evaluation.json":
            return report.to_json()
        case _:
            card = model_card(report)
            return card.to_html() if file.endswith(".html") else card.to_markdown()


def _rules(decision: "GateDecision") -> list[RuleOutcome]:
    return [
        RuleOutcome(
            rule=rule.rule,
            slice=rule.slice or "all rows",
            result=rule.status,
            asks=f"{rule.metric} {rule.asks}",
            found=rule.explanation,
            would_pass=rule.would_pass or "",
        )
        for rule in decision.rules
    ]

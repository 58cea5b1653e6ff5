"""Record of an evaluation: its report's folder, its row in the ledger, its metrics in the tracker's run.

Here: writing it once, and reading it again for a version's card and for pages. Not here: measurements and decisions
(`evaluate`), the content of a card (`report.card`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pydantic import ValidationError

from ml_assets.foundation.links import report_name
from ml_assets.foundation.reports.page import WrittenPage
from ml_assets.model.evaluation.evaluation_document import GateDecision, Role
from ml_assets.model.evaluation.metrics.metrics import SERVING_NAMES
from ml_assets.model.evaluation.report.card import Release, model_card
from ml_assets.model.evaluation.report.report import render, write_report
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import EvaluationSpec, Gate
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.mlflow_view import show_if_reachable
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import registry_of, releases_of
from ml_assets.model.release.rules import deciding_as_json, gates_as_json
from ml_assets.model.release.standing import PRODUCTION, BundleStandings, InputsUnknown, in_words
from ml_assets.model.steps.values import EvaluatedModel, TrainedModel, TrainingSet
from resources.acting import author_of_run
from resources.artifacts import ArtifactMissing, read_artifact
from resources.ledger import EvaluationRow, NewEvaluation, RuleOutcome, TransitionOutcome, author_in_words
from resources.platform import Platform


@dataclass(frozen=True, kw_only=True)
class UnrecordedEvaluation:
    """Evaluation that is not stored yet."""

    bundle: Bundle
    """Bundle of the challenger."""
    report: Report
    champion_digest: str | None
    """Bundle of the champion in the comparison; None without a champion."""
    rules: EvaluationSpec
    transitions: Mapping[str, Sequence[Gate]]
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
COMPARED: tuple[Role, ...] = ("baseline", "reference")
"""Roles whose metrics are shown beside the challenger's."""


def figures_beside(report: Report) -> dict[str, float]:
    """Return `<role>_<metric>` → value for the models beside the challenger."""
    measured = report.evaluation
    return {f"{role}_{name}": value for role in COMPARED for name, value in measured.values(role).items()}


def record(
    made: UnrecordedEvaluation,
    platform: Platform,
    training_set: TrainingSet,
    trained: TrainedModel,
    run_id: str,
    continues: Sequence[str] = (),
) -> EvaluatedModel:
    """Store the report in its own folder, append the decision to the ledger, and record metrics in the tracker.

    `continues` names what the run is a part of, such as a backfill: whoever launched that is its author, too.
    """
    report, bundle = made.report, made.bundle
    name = report_name(report.title, report.partition, report.digest)
    if platform.artifacts.exists(name, EVALUATION_FILE):  # written on another machine: it stays as it is
        platform.artifacts.pull(name)
    files = write_report(report, platform.artifacts.folder(name))
    place = platform.artifacts.push(name, last=files.json.name)
    decision = report.evaluation.decision
    author, launched_in = author_of_run((run_id, *continues), platform.ledger.launches, platform.acting)
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
            by=author,
            launched_in=launched_in,
            report=f"{place}/{files.html.name}",
            run_id=run_id,
            trained_on=training_set.trained_on,
            launches=trained.launches,
        )
    )
    # A version that was registered before shows its newest evaluation, also if that rejects it: then no step follows.
    show_if_reachable(registry_of(platform), platform.ledger.models, row.model)
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


def recorded_report(platform: Platform, row: EvaluationRow) -> Report:
    """Return the report of a recorded evaluation.

    Raises `ArtifactMissing` if its file is gone, and `ReportUnreadable`.
    """
    name = report_name(row.model, row.partition, row.evaluation_digest)
    content = read_artifact(platform.artifacts, name, EVALUATION_FILE)
    if (found := hashlib.sha256(content).hexdigest()) != row.evaluation_digest:
        raise ReportUnreadable(
            f"its SHA-256 is {found[:12]}…, and the ledger has {row.evaluation_digest[:12]}…: it was changed"
        )
    try:
        return Report.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise ReportUnreadable(f"{where}: {first['msg']}") from error


def checked_file(platform: Platform, row: EvaluationRow, file: str) -> str:
    """Return a file of the report of a recorded evaluation, made from its checked `evaluation.json`.

    `file` is one of those that `write_report` writes. Raises what `recorded_report` does.
    """
    report = recorded_report(platform, row)
    match file:
        case "report.html":
            return render(report)
        case "evaluation.json":
            return report.to_json()
        case _:
            card = model_card(report)
            return card.to_html() if file.endswith(".html") else card.to_markdown()


def _rules(decision: GateDecision) -> list[RuleOutcome]:
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


class ReportUnavailable(Exception):
    """A version has no evaluation, or the report of its evaluation is gone or of an earlier form."""


def card_of(platform: Platform, version: RegisteredVersion) -> WrittenPage:
    """Return the card of a registered version. Raises `ReportUnavailable`."""
    row, report = report_of(platform, version)
    return model_card(report, _release(platform, version, row))


def version_to_show(platform: Platform, model: str, number: int | None) -> RegisteredVersion | None:
    """Return the version `number`; None: that in production, or else the newest. None if `model` has no version.

    Raises `VersionMissing`, which lists the versions, and `NumberReused`.
    """
    versions = registry_of(platform).versions(model)
    if number is not None and versions:
        return releases_of(platform).version(model, number)
    held = BundleStandings.read(platform.ledger.models, model).in_production
    serving = [one for one in versions if held is not None and one.bundle_digest == held.bundle_digest]
    return (serving or versions or [None])[-1]


def report_of(platform: Platform, version: RegisteredVersion) -> tuple[EvaluationRow, Report]:
    """Return the evaluation that counts for a version, with its report. Raises `ReportUnavailable`."""
    row = evaluation_of(platform, version)
    try:
        return row, recorded_report(platform, row)
    except ReportUnreadable as error:
        raise ReportUnavailable(
            f"the report of evaluation {row.name} of {_named(version)} has an earlier form or is damaged ({error}): "
            f"materialize {row.partition} of the model again, which evaluates it anew if code, "
            "settings and rows are still the same"
        ) from error
    except ArtifactMissing as missing:
        raise ReportUnavailable(
            f"the report of evaluation {row.name} of {_named(version)} is gone from {row.report}: "
            f"materialize {row.partition} of the model again, which evaluates it anew"
        ) from missing


def evaluation_of(platform: Platform, version: RegisteredVersion) -> EvaluationRow:
    """Return the evaluation that counts for a version. Raises `ReportUnavailable` if it has none."""
    row = releases_of(platform).standings(version.model).of(version.bundle_digest).shown
    if row is None:
        raise ReportUnavailable(
            f"{_named(version)} was never evaluated by this ledger: materialize the model, which evaluates it"
        )
    return row


def objections_to(platform: Platform, row: EvaluationRow) -> tuple[str, ...]:
    """Return sentences about training inputs of an evaluation that were rejected since, or are not known any more."""
    try:
        refused = releases_of(platform).rejected_inputs(row)
    except InputsUnknown as unknown:
        return (f"Its training inputs are not known any more: {unknown}.",)
    return (f"Training inputs were rejected since: {in_words(refused)}.",) if refused else ()


def _named(version: RegisteredVersion) -> str:
    return f"{version.model} {version.number} ({version.semantic})"


def _release(platform: Platform, version: RegisteredVersion, row: EvaluationRow) -> Release:
    releases = releases_of(platform)
    history: list[str] = []
    for one in releases.log.promotions(version.model):
        if one.bundle_digest != version.bundle_digest:
            continue
        despite = f" Despite {one.despite}." if one.despite else ""
        what = "promoted" if one.returns_to is None else "rolled back to"
        role = "" if one.alias == PRODUCTION else f" as {one.alias}"
        history.append(
            f"{one.at:%Y-%m-%d %H:%M} UTC, {what}{role} by {author_in_words(one)}: {one.reason}.{despite}"
        )
        if one.demotion is not None:
            ended = one.demotion
            left = "demoted" if one.alias == PRODUCTION else "taken back from canary to staging"
            history.append(
                f"{ended.at:%Y-%m-%d %H:%M} UTC, {left} by {author_in_words(ended)}: {ended.reason}."
            )
    objections = objections_to(platform, row)
    standing = releases.standings(version.model).of(version.bundle_digest)
    return Release(
        number=version.number,
        semantic=version.semantic,
        stage=standing.stage,
        history=tuple(history),
        objections=objections,
    )

"""Model card of a registered version: its newest evaluation, and its standing in the ledger.

Here: finding the version and its report. Not here: the content of a card (`evaluation.report.card`).
"""

from typing import TYPE_CHECKING

from ml_assets.model.steps.record import ReportUnreadable, recorded_report
from resources.artifacts import ArtifactMissing
from resources.ledger import author_in_words
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.foundation.reports.page import WrittenPage
    from ml_assets.model.evaluation.report.card import Release
    from ml_assets.model.evaluation.report_document import Report
    from ml_assets.model.release.registry import RegisteredVersion
    from resources.ledger import EvaluationRow


class ReportUnavailable(Exception):
    """A version has no evaluation, or the report of its evaluation is gone or of an earlier form."""


def card_of(platform: Platform, version: "RegisteredVersion") -> "WrittenPage":
    """Return the card of a registered version. Raises `ReportUnavailable`."""
    from ml_assets.model.evaluation.report.card import model_card

    row, report = report_of(platform, version)
    return model_card(report, _release(platform, version, row))


def version_to_show(platform: Platform, model: str, number: int | None) -> "RegisteredVersion | None":
    """Return the version `number`; None: that in production, or else the newest. None if `model` has no version.

    Raises `VersionMissing`, which lists the versions, and `NumberReused`.
    """
    from ml_assets.model.release.bundle_standing import BundleStandings
    from ml_assets.model.release.of_platform import registry_of, releases_of

    versions = registry_of(platform).versions(model)
    if number is not None and versions:
        return releases_of(platform).version(model, number)
    held = BundleStandings.read(platform.ledger.models, model).in_production
    serving = [one for one in versions if held is not None and one.bundle_digest == held.bundle_digest]
    return (serving or versions or [None])[-1]


def report_of(platform: Platform, version: "RegisteredVersion") -> "tuple[EvaluationRow, Report]":
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


def evaluation_of(platform: Platform, version: "RegisteredVersion") -> "EvaluationRow":
    """Return the evaluation that counts for a version. Raises `ReportUnavailable` if it has none."""
    from ml_assets.model.release.of_platform import releases_of

    row = releases_of(platform).standing(version.model, version.bundle_digest).shown
    if row is None:
        raise ReportUnavailable(
            f"{_named(version)} was never evaluated by this ledger: materialize the model, which evaluates it"
        )
    return row


def objections_to(platform: Platform, row: "EvaluationRow") -> tuple[str, ...]:
    """Return sentences about training inputs of an evaluation that were rejected since, or are not known any more."""
    from ml_assets.model.release.of_platform import releases_of
    from ml_assets.model.release.rows_behind import InputsUnknown, in_words

    try:
        refused = releases_of(platform).rejected_inputs(row)
    except InputsUnknown as unknown:
        return (f"Its training inputs are not known any more: {unknown}.",)
    return (f"Training inputs were rejected since: {in_words(refused)}.",) if refused else ()


def _named(version: "RegisteredVersion") -> str:
    return f"{version.model} {version.number} ({version.semantic})"


def _release(platform: Platform, version: "RegisteredVersion", row: "EvaluationRow") -> "Release":
    from ml_assets.model.evaluation.report.card import Release
    from ml_assets.model.release.bundle_standing import PRODUCTION
    from ml_assets.model.release.of_platform import releases_of

    releases = releases_of(platform)
    history: list[str] = []
    for one in releases.log(version.model):
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
    standing = releases.standing(version.model, version.bundle_digest)
    return Release(
        number=version.number,
        semantic=version.semantic,
        stage=standing.stage,
        history=tuple(history),
        objections=objections,
    )

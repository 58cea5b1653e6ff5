"""Difference of two registered versions of a model: data, code, settings, and both models on the same rows.

The rows are the holdout of the version with the later one, as it was evaluated. Here: finding and comparing the parts,
also of a model that an environment trained and main's. Not here: the pages about them (`difference_page`).
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ml_assets.data.snapshots.keep import commit_that_keeps, kept_snapshot
from ml_assets.data.snapshots.split_reader import Snapshot, SnapshotError
from ml_assets.data.snapshots.split_rows import SplitScan, rows_of
from ml_assets.data.tables.history.diff import ReadWindow, TableChange, compare_windows
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from ml_assets.model.evaluation.comparison.model_difference import Difference
from ml_assets.model.evaluation.comparison.sentences import with_interval
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import registry_of
from ml_assets.model.release.standing import InputsUnknown, keys_of
from ml_assets.model.steps.champion import CannotScore, MeasuredRows, opened, scored
from ml_assets.model.steps.record import (
    ReportUnavailable,
    ReportUnreadable,
    evaluation_of,
    objections_to,
    recorded_report,
    version_to_show,
)
from ml_assets.model.steps.spec import PipelineSpec
from resources.artifacts import ArtifactMissing
from resources.lake import ObjectNotFound, RefNotFound
from resources.ledger import EvaluationRow
from resources.platform import Platform
from resources.words import dotted

_CODE = "code of the model"
"""Line of a report's lineage, and setting of a page, with the version of the model's code."""
_IN_BUNDLES = ("decode", "init_from", "restored_from")
"""Settings that only a bundle holds: the version that `init_from` names is also in the report, as initial weights."""


@dataclass(frozen=True, kw_only=True)
class KnownFacts:
    """Facts of a version that its bundle holds, and its report, too."""

    settings: Mapping[str, Any]
    """Everything declared that can change weights, as flat keys: hyperparameters, training, seed, code."""
    inputs: Mapping[str, str]
    """Column that the model reads → kind."""
    label: str
    classes: tuple[str, ...]
    windows: Mapping[str, tuple[str, str]]
    """Split → first and last partition."""
    weights: str
    """SHA-256 of the weights."""

    @property
    def in_reports(self) -> Mapping[str, Any]:
        """Settings that a report holds, too."""
        return {
            key: value for key, value in self.settings.items() if key.partition(".")[0] not in _IN_BUNDLES
        }

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> Self:
        """Read them from a bundle."""
        facts, lineage = bundle.facts, bundle.facts.lineage
        return cls(
            settings={**dict(dotted(lineage.configuration)), _CODE: lineage.code_version},
            inputs={one.name: one.kind for one in facts.inputs},
            label=lineage.label,
            classes=tuple(facts.fitted.classes),
            windows=lineage.windows,
            weights=lineage.weights_sha256,
        )

    @classmethod
    def of_report(cls, report: Report) -> Self:
        """Read them from a report, which lacks the versions of other code."""
        model = report.model
        declared = {
            "hyperparameters": model.hyperparameters,
            "training": model.training,
            "seed": model.seed,
            **({"weight": model.weight} if model.weight else {}),
        }
        return cls(
            settings={**dict(dotted(declared)), _CODE: report.lineage[_CODE]},
            inputs={name: kind for kind, names in model.inputs.items() for name in names},
            label=model.label,
            classes=tuple(one.name for one in report.evaluation.classes),
            windows={one.split: (one.first, one.last) for one in report.splits},
            weights=report.lineage["weights"],
        )


@dataclass(frozen=True, kw_only=True)
class VersionFacts:
    """One of the two versions, as ledger, lake and bundle store hold it."""

    version: RegisteredVersion
    evaluation: EvaluationRow
    bundle: Bundle | None
    """None if it is lost or damaged."""
    bundle_lost: str
    """Reason why there is no `bundle`; empty if there is."""
    report: Report | None
    """None if it is gone or unreadable."""
    report_lost: str
    """Reason why there is no `report`; empty if there is."""
    objections: tuple[str, ...]
    """Facts that became known after the evaluation, such as training inputs that were rejected since."""

    @property
    def name(self) -> str:
        """Name for people."""
        return f"version {self.version.number} ({self.version.semantic})"

    @property
    def title(self) -> str:
        """Name at the beginning of a sentence."""
        return f"V{self.name[1:]}"

    @property
    def known(self) -> KnownFacts | None:
        """Facts from the bundle or, if it is lost, from the report; None if both are gone."""
        if self.bundle is not None:
            return KnownFacts.of_bundle(self.bundle)
        return None if self.report is None else KnownFacts.of_report(self.report)

    @property
    def origins(self) -> Mapping[str, str]:
        """Study that chose values, and version that provided the initial weights, as the report names them."""
        if self.report is None:
            return {}
        return {"study": self.report.model.study, "initial weights": self.report.model.begins_with}


@dataclass(frozen=True, kw_only=True)
class VersionDifference:
    """Everything in which two versions differ."""

    before: VersionFacts
    after: VersionFacts
    data: TableChange | None
    """Change of the feature table; None if a version read another table, or the lake lost a window."""
    data_lost: str
    """Reason why there is no `data`; empty if there is."""
    columns: tuple[str, ...]
    """Columns that only one of the models reads, one sentence each."""
    settings: Mapping[str, tuple[object, object]]
    """Key → values before and after; None for a key that a version lacks."""
    unknown: tuple[str, ...]
    """Facts that cannot be compared, one sentence each."""
    objections: tuple[str, ...]
    """Facts that became known after the evaluations, one sentence each."""
    measured: Difference | None
    cannot_score: tuple[str, ...]
    """Versions that cannot be scored on these rows, one sentence each with the reason."""
    scored_on: str
    """Rows on which both were scored, in words."""
    seen: tuple[str, ...]
    """Versions that were trained or selected on some of these rows, one sentence each."""


def compare_versions(
    spec: PipelineSpec, platform: Platform, before: RegisteredVersion, after: RegisteredVersion
) -> VersionDifference:
    """Compare two versions of the model of `spec`, whose current section `evaluation` names metrics and slices.

    A version whose bundle is lost is named, and compared by what ledger, report and lake know. Raises
    `ReportUnavailable` for a version that was never evaluated.
    """
    old, new = _facts(platform, before), _facts(platform, after)
    data, lost = _data(spec, platform, old, new)
    measured, cannot, scored_on, seen = _on_the_same_rows(spec, platform, old, new)
    was, now = _settings(old, new)
    if old.report is not None and new.report is not None:
        was |= {key: value or None for key, value in old.origins.items()}
        now |= {key: value or None for key, value in new.origins.items()}
    return VersionDifference(
        before=old,
        after=new,
        data=data,
        data_lost=lost,
        columns=tuple(_columns(old, new)),
        settings={
            key: (was.get(key), now.get(key)) for key in {**was, **now} if was.get(key) != now.get(key)
        },
        unknown=tuple(sentence for one in (old, new) for sentence in _unknown(one)),
        objections=tuple(f"{one.title}: {said}" for one in (old, new) for said in one.objections),
        measured=measured,
        cannot_score=cannot,
        scored_on=scored_on,
        seen=seen,
    )


def _facts(platform: Platform, version: RegisteredVersion) -> VersionFacts:
    row = evaluation_of(platform, version)
    bundle, bundle_lost, report, lost = None, "", None, ""
    try:
        bundle = opened(platform, version.bundle_digest)
    except CannotScore as error:
        bundle_lost = str(error)
    try:
        report = recorded_report(platform, row)
    except ArtifactMissing:
        lost = f"the report of evaluation {row.name} is gone"
    except ReportUnreadable as error:
        lost = f"the report of evaluation {row.name} has an earlier form or is damaged ({error})"
    return VersionFacts(
        version=version,
        evaluation=row,
        bundle=bundle,
        bundle_lost=bundle_lost,
        report=report,
        report_lost=lost,
        objections=objections_to(platform, row),
    )


def _data(
    spec: PipelineSpec, platform: Platform, old: VersionFacts, new: VersionFacts
) -> tuple[TableChange | None, str]:
    tables = [one.evaluation.trained_on.table for one in (old, new)]
    if tables[0] != tables[1]:
        return None, f"{old.name} read {tables[0]}, {new.name} reads {tables[1]}"
    try:
        return compare_windows(_window(platform, old), _window(platform, new), spec.features.primary_key), ""
    except (RefNotFound, ObjectNotFound, PartitionMissing, InputsUnknown) as error:
        return None, f"the lake lost a window: {error}"


def _window(platform: Platform, one: VersionFacts) -> ReadWindow:
    trained = one.evaluation.trained_on
    reader = TableReader(platform.lake, trained.commit)
    return ReadWindow(reader=reader, table=trained.table, keys=keys_of(reader, trained))


def _settings(old: VersionFacts, new: VersionFacts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of both; those of a lost version that only a bundle holds are left out of both."""
    if old.known is None or new.known is None:
        return {}, {}
    if old.bundle is None or new.bundle is None:
        return {**old.known.in_reports}, {**new.known.in_reports}
    return {**old.known.settings}, {**new.known.settings}


def _unknown(one: VersionFacts) -> Iterator[str]:
    if one.bundle_lost:
        told = "its columns and settings are those of its report" if one.report else "nor has it a report"
        yield f"The bundle of {one.name} is lost ({one.bundle_lost}); {told}."
    if one.report_lost:
        yield f"Study and initial weights of {one.name} are not known: {one.report_lost}."


def _columns(old: VersionFacts, new: VersionFacts) -> list[str]:
    if old.known is None or new.known is None:
        return []
    was, now = old.known.inputs, new.known.inputs
    said = [f"{name} ({kind}) is new." for name, kind in now.items() if name not in was]
    said += [f"{name} ({kind}) is gone." for name, kind in was.items() if name not in now]
    said += [
        f"{name} was {was[name]}, and is {kind}." for name, kind in now.items() if was.get(name, kind) != kind
    ]
    labels = [old.known.label, new.known.label]
    if labels[0] != labels[1]:
        said.append(f"The label was {labels[0]}, and is {labels[1]}.")
    classes = [old.known.classes, new.known.classes]
    if classes[0] != classes[1]:
        said.append(f"The classes were {', '.join(classes[0])}, and are {', '.join(classes[1])}.")
    return said


def _on_the_same_rows(
    spec: PipelineSpec, platform: Platform, old: VersionFacts, new: VersionFacts
) -> tuple[Difference | None, tuple[str, ...], str, tuple[str, ...]]:
    """Return the change of the metrics, versions that cannot score, the rows in words, versions that have seen them."""

    if old.bundle is None or new.bundle is None:
        lost = (
            f"The bundle of {one.name} is lost: {one.bundle_lost}." for one in (old, new) if not one.bundle
        )
        return None, tuple(lost), "", ()
    bundles = {old.name: old.bundle, new.name: new.bundle}

    def holdout_of(one: VersionFacts) -> tuple[str, str]:
        return bundles[one.name].facts.lineage.windows["holdout"]

    source = max(new, old, key=lambda one: holdout_of(one)[1])
    first, last = holdout_of(source)
    words = f"the holdout of {source.name}, {first} to {last}"
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as folder:
        try:
            snapshot, holdout = _holdout(
                platform, source, bundles[source.name].facts.lineage.fingerprint, Path(folder)
            )
        except (RefNotFound, ObjectNotFound, PartitionMissing, InputsUnknown, SnapshotError) as error:
            return None, (f"The lake lost {words}: {error}.",), words, ()
        asked = replace(bundles[source.name].facts.question, objective=spec.evaluation.objective)
        rows = MeasuredRows.of(spec, snapshot, holdout, asked)
        answers: list[Any] = []
        cannot: list[str] = []
        for one in (old, new):
            try:
                answers.append(scored(bundles[one.name], rows))
            except CannotScore as error:
                cannot.append(f"{one.title} cannot score {words}: {error}.")
    seen = tuple(
        f"{one.title} was trained or selected on {len(some)} of these "
        f"{len(rows.partitions)} partitions, so its metrics here are too good."
        for one in (old, new)
        if (some := rows.seen_by(bundles[one.name]))
    )
    if cannot:
        return None, tuple(cannot), words, seen
    before, after = answers
    try:
        measured = rows.change(before, after, spec.evaluation)
    except EvaluationInputError as error:
        return None, (f"Today's section `evaluation` cannot measure {words}: {error}.",), words, seen
    return measured, (), words, seen


def _holdout(
    platform: Platform, source: VersionFacts, fingerprint: str, folder: Path
) -> tuple[Snapshot, SplitScan]:
    model, window, evaluation = source.version.model, _window(platform, source), source.evaluation
    read_at = evaluation.trained_on.commit
    kept = commit_that_keeps(platform.lake, model, fingerprint, evaluation.bundle_digest, read_at)
    if kept is None:
        raise RefNotFound(f"no branch keeps the snapshot that was read at commit {read_at[:12]}")
    # The partition of the run that froze the snapshot; a later evaluation of the same bundle is of the same partition.
    snapshot = kept_snapshot(platform.lake, kept, model, evaluation.partition, folder)
    return snapshot, rows_of(window.reader, window.table, window.keys, snapshot)["holdout"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentModel:
    """Newest model that an environment trained for one pipeline, beside main's."""

    model: str
    partition: str
    decision: str
    """Decision of the gates in the environment, in one sentence."""
    main: str
    """Version of main with which it is compared; empty if main has none."""
    measured: VersionDifference | None
    """Both on the same rows; None if one of them was not registered, or the environment does not know main's."""
    metrics: Mapping[str, tuple[str, str]]
    """Metric → value of main and of the environment, each on its own holdout; empty if `measured` has them."""


def models_trained_in(
    main: Platform, inside: Platform, specs: Mapping[str, PipelineSpec]
) -> list[EnvironmentModel]:
    """Return the newest model of each of the pipelines `specs` that the environment `inside` evaluated and main did
    not."""
    found: list[EnvironmentModel] = []
    for model, spec in specs.items():
        known = {one.evaluation_digest for one in main.ledger.models.evaluations(model)}
        news = [one for one in inside.ledger.models.evaluations(model) if one.evaluation_digest not in known]
        if news:
            found.append(_compared(main, inside, spec, news[-1]))
    return found


def _compared(main: Platform, inside: Platform, spec: PipelineSpec, row: EvaluationRow) -> EnvironmentModel:
    before, after = version_to_show(main, row.model, None), _registered(inside, row)
    measured: VersionDifference | None = None
    if before is not None and after is not None:
        with suppress(ReportUnavailable):  # main registered its version after the environment was created
            measured = compare_versions(spec, inside, before, after)
    return EnvironmentModel(
        model=row.model,
        partition=row.partition,
        decision=f"{row.status}: {row.summary}",
        main="" if before is None else f"version {before.number} ({before.semantic})",
        measured=measured,
        metrics={} if measured is not None else _side_by_side(main, inside, before, row),
    )


def _registered(inside: Platform, row: EvaluationRow) -> RegisteredVersion | None:
    versions = registry_of(inside).versions(row.model)
    return next((one for one in versions if one.bundle_digest == row.bundle_digest), None)


def _side_by_side(
    main: Platform, inside: Platform, before: RegisteredVersion | None, row: EvaluationRow
) -> dict[str, tuple[str, str]]:
    theirs, ours = _metrics(inside, row), {}
    if before is not None:
        with suppress(ReportUnavailable):
            ours = _metrics(main, evaluation_of(main, before))
    return {name: (ours.get(name, "–"), theirs.get(name, "–")) for name in {**ours, **theirs}}


def _metrics(platform: Platform, row: EvaluationRow) -> dict[str, str]:
    try:
        report = recorded_report(platform, row)
    except (ArtifactMissing, ReportUnreadable):
        return {}
    measured = report.evaluation.overall.metrics["challenger"]
    return {name: with_interval(one) for name, one in measured.items()}

"""Step 1: validate the partitions that the snapshot will read, and their inputs at any depth. Later steps check again.

A partition may be rejected at any time after its window was validated. `ml-assets plan` shows the columns of a window
that changed since its last training, and which step reads them. Not here: the check at the moment a version is
registered or promoted (`release.promotion`), staleness of partitions, which compares them with what they were made from
(`tables.guard`).
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import BuildRefused, InputsRefused, rejections_of, validate_window
from ml_assets.data.tables.manifest import ManifestUnreadable
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from ml_assets.model.release.signing_keys import SigningKeyRefused
from ml_assets.model.release.standing import contents_of
from ml_assets.model.steps.declared_functions import require_own_metrics
from ml_assets.model.steps.identity import DeclarationChanged, settings_digest
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.values import TrainingSet, ValidatedWindow
from resources.lake import ObjectNotFound, RefNotFound
from resources.ledger import TrainedOn
from resources.platform import Platform


class WindowTooShort(BuildRefused):
    """The feature table begins after the start of the window."""


class SigningKeyUnusable(BuildRefused):
    """The key that signs dossiers cannot be read."""


def validate_inputs(
    spec: PipelineSpec, platform: Platform, tables: DeclaredTables, partition: str, keys: Sequence[str]
) -> ValidatedWindow:
    """Validate the partitions `keys` of the feature table on main.

    Raises `InputsRefused`, which names partitions that are missing, rejected, unusable or, with `on_stale_inputs:
    refuse`, stale. Raises `WindowTooShort` if `keys` are fewer than the window, `MetricUnusable` and
    `SigningKeyUnusable`.
    """
    require_own_metrics(spec.name, spec.evaluation)
    _require_signing_key(spec.name, platform)
    keys = sorted(keys)
    _require_whole_window(spec, partition, keys)
    reader = TableReader.at(platform.lake, "main")
    table = spec.features.table
    validation = validate_window(reader, platform.ledger, tables, table, keys)
    refused = dict(validation.impossible)
    refused |= {f"{table} {key}": validation.barred[key] for key in validation.missing}
    refused |= validation.refused
    if spec.on_stale_inputs == "refuse":
        refused |= {f"{table} {key}": f"is stale: {why}" for key, why in validation.stale.items()}
    if refused:
        raise InputsRefused(f"{spec.name} {partition}", refused, validation.to_build)
    return ValidatedWindow(
        commit=reader.commit_id,
        table=table,
        keys=tuple(keys),
        stale=dict(validation.stale),
        inputs=tuple(dict(row) for row in validation.inputs),
        declared=_declared(spec, tables),
    )


def _require_signing_key(model: str, platform: Platform) -> None:
    """Read the key of dossiers, so that no training runs whose registration must fail."""
    if platform.settings.signing_key is None:
        return
    from ml_assets.extras.governance.dossier.signature import SigningKey

    try:
        SigningKey.read(platform.settings.signing_key)
    except SigningKeyRefused as refused:
        raise SigningKeyUnusable(
            f"{model} would fail after its training, when its dossier is signed: {refused}"
        ) from refused


def possible_partitions(spec: PipelineSpec, reader: TableReader, tables: DeclaredTables) -> list[str]:
    """Return the partitions of the model whose rows are on main, oldest first; empty if no table is declared."""
    table, own = spec.features.table, spec.partitions.as_cadence
    return [key for key in reader.keys(table) if tables.find(table) is not None and own.covers(key)]


def require_as_validated(
    spec: PipelineSpec, tables: DeclaredTables, partition: str, validated: ValidatedWindow
) -> None:
    """Refuse a window that was validated for other declarations of the pipeline or its tables than the current ones.

    A run that continues a failed run takes the window of that run: its partitions, and their staleness, may be others
    now. Raises `DeclarationChanged`.
    """
    if validated.declared != _declared(spec, tables):
        raise DeclarationChanged(
            f"{spec.name} {partition} does not go on with a window that was validated before the pipeline, its code or "
            f"a table that it reads was declared anew: materialize {spec.name} {partition} again"
        )


def _declared(spec: PipelineSpec, tables: DeclaredTables) -> str:
    facts = [one.to_facts() for one in tables.with_inputs(spec.features.table)]
    chosen = (settings_digest(spec), spec.on_stale_inputs, spec.partitions.model_dump_json())
    return hashlib.sha256("\n".join([*chosen, json.dumps(facts, sort_keys=True)]).encode()).hexdigest()


def _require_whole_window(spec: PipelineSpec, partition: str, keys: Sequence[str]) -> None:
    """Refuse a short window. Dagster leaves out partitions before the table's start, which would shorten it
    silently."""
    if len(keys) < spec.window.total:
        raise WindowTooShort(
            f"{spec.name} {partition} needs {spec.window.total} partitions of {spec.features.table} "
            f"(train {spec.window.train}, validation {spec.window.validation}, holdout {spec.window.holdout}), "
            f"but the table begins only {len(keys)} partitions before that: choose a later partition or a "
            "shorter window"
        )


def require_nothing_rejected_since(
    platform: Platform, training_set: TrainingSet, *, is_trained: bool = False
) -> None:
    """Raise `InputsRefused` if the window of `training_set` now holds a rejected partition, at any depth.

    A training takes hours, and a run that continues a failed run may begin days later.
    """
    if refused := rejected_behind(platform, training_set.trained_on):
        raise rejected_since(training_set, refused, is_trained=is_trained)


def rejected_behind(platform: Platform, window: TrainedOn) -> dict[str, str]:
    """Return `table key` → reason for each partition behind `window`, at any depth, that is rejected now.

    Raises `InputsUnknown` if the lake no longer holds the window.
    """

    return rejections_of(platform.ledger, contents_of(platform.lake, platform.ledger.models, window))


def rejected_since(
    training_set: TrainingSet, refused: Mapping[str, str], *, is_trained: bool
) -> InputsRefused:
    """Return the refusal that names partitions rejected after the window of `training_set` was validated."""
    kept = " It is trained but not registered. Its weights are kept: materialize it again to reuse them."
    whose = f"{training_set.job.model} {training_set.job.partition}"
    return InputsRefused(whose, refused, more=kept if is_trained else "")


ReadBy = Literal["training", "evaluation", "nothing"]


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    """Columns that changed in the same partitions and have the same reader."""

    keys: tuple[str, ...]
    """Partitions, oldest first."""
    columns: tuple[str, ...]
    """Sorted."""
    read_by: ReadBy
    """The first step that reads them: `evaluation` means that only the evaluation does."""


def changes_since(
    spec: PipelineSpec,
    reader: TableReader,
    commit: str,
    keys: Sequence[str],
    champion: Collection[str] = (),
) -> Sequence[ColumnChange]:
    """Return the columns of the partitions `keys` that differ between `commit` and the reader's commit.

    `champion` are the columns that the version in production reads: an evaluation reads them, too. Returns none if the
    lake no longer holds the partitions at `commit`, or holds them in an earlier form.
    """
    table = spec.features.table
    earlier = TableReader(reader.store, commit)
    try:
        differ = [
            key for key in keys if earlier.object_hashes(table, key) != reader.object_hashes(table, key)
        ]
        before, now = earlier.manifests(table, differ), reader.manifests(table, differ)
    except (RefNotFound, ObjectNotFound, PartitionMissing, ManifestUnreadable):
        return ()
    evaluated = {*spec.evaluation.columns, *champion}
    found: dict[tuple[ReadBy, tuple[str, ...]], list[str]] = {}
    for key in differ:
        was, is_now = before[key], now[key]
        names = sorted({*was.schema, *is_now.schema})
        changed = [name for name in names if was.digest_of_values([name]) != is_now.digest_of_values([name])]
        by_reader: dict[ReadBy, list[str]] = {}
        for name in changed:
            by_reader.setdefault(_reader_of(spec, evaluated, name), []).append(name)
        for read_by, columns in by_reader.items():
            found.setdefault((read_by, tuple(columns)), []).append(key)
    return [
        ColumnChange(keys=tuple(where), columns=columns, read_by=read_by)
        for (read_by, columns), where in sorted(found.items(), key=lambda one: (_ORDER[one[0][0]], one[1]))
    ]


_ORDER: Mapping[ReadBy, int] = {"training": 0, "evaluation": 1, "nothing": 2}


def _reader_of(spec: PipelineSpec, evaluated: Collection[str], column: str) -> ReadBy:
    if column in spec.training_columns:
        return "training"
    return "evaluation" if column in evaluated else "nothing"

"""Model that was trained elsewhere, on its way through the steps of a pipeline: its store, its fit, its train step.

The steps are those of a training, so the same gates on the same holdout decide. Only the train step differs: it runs no
worker and takes the graph. The platform knows neither the code nor the rows behind such a model; what its sender
declares is recorded as declared. Not here: the document and the check of the graph (`release.foreign_document`,
`release.foreign_graph`).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.days import Days
from ml_assets.foundation.links import run_url
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.release.bundle_store import TRAINED_ELSEWHERE
from ml_assets.model.release.foreign_document import ForeignModel
from ml_assets.model.release.foreign_graph import ForeignModelRefused, matrix_graph
from ml_assets.model.steps.identity import require_as_frozen
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.values import TrainedModel, TrainingSet
from ml_assets.model.steps.window import require_nothing_rejected_since
from resources.artifacts import ArtifactMissing, Artifacts, read_artifact
from resources.job.job import TrainingResult
from resources.ledger import Person
from resources.platform import Platform
from resources.tracking.tracker import RunFacts
from resources.words import did_you_mean

_DOCUMENT = "model.json"


def store_foreign(artifacts: Artifacts, document: ForeignModel) -> None:
    """Keep the document under its digest. Safe to repeat."""
    name = _folder(document.model, document.digest)
    if not artifacts.exists(name, _DOCUMENT):
        with artifacts.create(name, _DOCUMENT) as stream:
            stream.write(document.to_bytes())


def stored_foreign(artifacts: Artifacts, model: str, digest: str) -> ForeignModel:
    """Return the document with this digest. Raises `ForeignModelRefused` if it is gone or was altered."""
    try:
        content = read_artifact(artifacts, _folder(model, digest), _DOCUMENT)
        document = ForeignModel.model_validate_json(content)
    except (ArtifactMissing, ValidationError) as error:
        raise ForeignModelRefused(
            f"the document {digest[:12]} of {model} is gone, or cannot be read: register the model again"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest or document.model != model:
        raise ForeignModelRefused(
            f"the document {digest[:12]} of {model} was altered: register the model again"
        )
    return document


def require_asked(document: ForeignModel, partition: str) -> None:
    """Raise `ForeignModelRefused` if a run is about another partition than the document names."""
    if document.partition != partition:
        raise ForeignModelRefused(
            f"the document is about {document.model} {document.partition}, and the run about {partition}: register the "
            "model for this partition"
        )


def _folder(model: str, digest: str) -> str:
    return f"foreign/{model}/{digest}"


def require_fit(spec: PipelineSpec, document: ForeignModel, reader: TableReader, keys: Sequence[str]) -> None:
    """Raise `ForeignModelRefused` unless columns and days of a model fit to `spec` and its window of partitions `keys`.

    The model may have seen nothing from the holdout on, nor from the embargo before it: there, labels of trainings are
    not known yet either.
    """
    if spec.features.blob is not None:
        raise ForeignModelRefused(
            f"{spec.name} reads blobs, and a registered graph reads numbers and texts alone: train it here"
        )
    _require_columns(spec, document, reader, keys)
    holdout = spec.holdout_of(keys)
    guarded = spec.days_of(keys[-spec.window.holdout - spec.window.embargo :])
    if document.trained_on.days.reaches(guarded):
        raise ForeignModelRefused(
            f"the model has seen days up to {document.trained_on.last}, and {spec.name} {document.partition} is "
            f"measured on {holdout}{_embargoed(guarded, holdout)}: its score would include what trained it. Choose a "
            "later partition, or train without these days"
        )


def _embargoed(guarded: Days, holdout: Days) -> str:
    return "" if guarded == holdout else f", with an embargo from {guarded.spans[0][0]}"


def _require_columns(
    spec: PipelineSpec, document: ForeignModel, reader: TableReader, keys: Sequence[str]
) -> None:
    features = spec.features
    known = [*features.numeric, *features.categorical]
    schema = reader.scan(features.table, keys[-1:]).collect_schema()
    for one in document.inputs:
        if one.name not in known:
            raise ForeignModelRefused(
                f"{one.name!r} is no input of {spec.name}{did_you_mean(one.name, known)}. A registered model reads "
                "columns that the pipeline declares under `features`, so that no label is among them"
            )
        if (dtype := str(schema[one.name]).lower()) != one.dtype.lower():
            raise ForeignModelRefused(
                f"{one.name!r} is {dtype} in {features.table}, and the model declares {one.dtype}: read it as {dtype}"
            )
        if bool(one.vocabulary) != (one.name in features.categorical):
            is_text = one.name in features.categorical
            raise ForeignModelRefused(
                f"{one.name!r} is {'a category' if is_text else 'a number'} of {spec.name}: "
                + ("declare its `vocabulary`" if is_text else "leave its `vocabulary` out")
            )


def require_classes(document: ForeignModel, classes: Sequence[str]) -> None:
    """Raise `ForeignModelRefused` unless a model answers for exactly the classes of the label, in their order."""
    if tuple(classes) != document.classes:
        raise ForeignModelRefused(
            f"the label has the classes {list(classes)}, and the model declares {list(document.classes)}: declare and "
            "answer the same ones, in the same order"
        )


def require_objective(spec: PipelineSpec, document: ForeignModel) -> None:
    """Raise `ForeignModelRefused` if a model has classes and the label of `spec` is a number, or the reverse."""
    if facts_of(spec.evaluation.objective).has_classes != bool(document.classes):
        raise ForeignModelRefused(
            f"the objective of {spec.name} is {spec.evaluation.objective}: "
            + ("leave `classes` out" if document.classes else "name the classes of the label in `classes`")
        )


def checked_graph_of(spec: PipelineSpec, document: ForeignModel) -> bytes:
    """Return the graph of the matrix of a document. Raises `ForeignModelRefused`."""
    return matrix_graph(document, facts_of(spec.evaluation.objective).trained_as)


def elsewhere_in_words(document: ForeignModel, by: Person | None = None) -> str:
    """Return the origin of a model in a sentence; `by` is who sent it."""
    sent = "" if by is None else f" Sent by {by.name} (checked by {by.checked_by})."
    seen = document.trained_on
    return (
        f"Trained elsewhere with {document.origin}, on {seen.first} to {seen.last}, as its sender declares.{sent} "
        f"Document {document.digest}, ONNX file {document.onnx_sha256}. The platform knows neither the code nor the "
        "rows behind it"
    )


def facts_for_bundle(document: ForeignModel) -> Mapping[str, Any]:
    """Return what a bundle records about the origin of its model; JSON values."""
    return {
        TRAINED_ELSEWHERE: {
            "document": document.digest,
            "onnx": document.onnx_sha256,
            "origin": document.origin,
            "declared_days": {
                "first": document.trained_on.first.isoformat(),
                "last": document.trained_on.last.isoformat(),
            },
        }
    }


def take_foreign(spec: PipelineSpec, platform: Platform, training_set: TrainingSet) -> TrainedModel:
    """Return the model in place of a finished training. It has no loss, steps or attempts.

    The launch has checked the graph, and the next step checks it again before it is bundled. Raises
    `ForeignModelRefused`, and `DeclarationChanged`.
    """
    job = training_set.job
    require_as_frozen(spec, training_set)
    require_nothing_rejected_since(platform, training_set)
    document = stored_foreign(platform.artifacts, job.model, job.foreign)
    with platform.tracker.start(_tracking_facts(spec, platform, training_set, document)) as tracked:
        run_id = tracked.run_id
    result = TrainingResult(
        fingerprint=job.fingerprint,
        weights="",
        weights_sha256=document.onnx_sha256,
        best_step=0,
        best_validation_loss=math.nan,
        steps=0,
        epochs=0,
        world_size=0,
        rows_per_second=0.0,
        seconds=0.0,
        worker_seconds=0.0,
        attempts=0,
    )
    folder = platform.artifacts.folder(_folder(job.model, job.foreign))  # without events
    return TrainedModel(result=result, folder=str(folder), mlflow_run=run_id, is_reused=False)


def _tracking_facts(
    spec: PipelineSpec, platform: Platform, training_set: TrainingSet, document: ForeignModel
) -> RunFacts:
    job = training_set.job
    return RunFacts(
        experiment=job.model,
        fingerprint=job.fingerprint,
        name=f"{job.partition} (trained elsewhere)",
        author=platform.acting.name,
        note=f"{spec.description}\n\n{elsewhere_in_words(document)}.",
        tags={
            "partition": job.partition,
            "lake_commit": training_set.commit,
            "snapshot_digest": job.snapshot_digest,
            "dagster_run": training_set.run_id,
            "dagster_url": run_url(platform.settings.ui_url, training_set.run_id),
            "schema_hash": job.schema_hash,
            "trained_elsewhere": document.digest,
        },
        dataset_name=training_set.table,
        dataset_digest=job.snapshot_digest,
    )

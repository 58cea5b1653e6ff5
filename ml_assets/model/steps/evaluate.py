"""Step 4: bundle the weights, score the holdout as serving would, and let the gates decide.

Bundles score challenger and champion on the same rows; no stored metric of the champion is read. The index of the
snapshot names the rows; this step chooses none. It reads the columns that models and the section `evaluation` name, and
holds of each holdout row only what the section names, and the predictions. Training rows are summed or drawn from
(`comparators`).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.snapshots.builder import fitted_of
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, open_snapshot
from ml_assets.data.snapshots.split_rows import SplitScan, rows_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.links import run_url
from ml_assets.model.evaluation.comparison.curves import ScoredRows, threshold_table
from ml_assets.model.evaluation.comparison.explanations import NotPredicted, explain
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.holdout_rows import (
    few_places,
    in_range,
    places_of_few_lists,
    redraws_of,
)
from ml_assets.model.evaluation.comparison.worst_slices import worst_slices
from ml_assets.model.evaluation.metrics.row_weights import weights_of
from ml_assets.model.evaluation.report_document import Explanations, LossCurve, ModelFacts, Report, SplitRows
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.release.foreign_document import ForeignModel
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.runtime import PredictionNotFinite, ServingModel
from ml_assets.model.steps.blobs import few_with_blobs
from ml_assets.model.steps.bundling import BATCH_ROWS, bundle_of, few_raw, serving_cost_of, versions_behind
from ml_assets.model.steps.champion import MeasuredRows, compared_models, rival_of, with_class_ids
from ml_assets.model.steps.comparators import comparators_of
from ml_assets.model.steps.declared_functions import own_metrics
from ml_assets.model.steps.foreign import elsewhere_in_words, stored_foreign
from ml_assets.model.steps.identity import require_as_frozen
from ml_assets.model.steps.record import UnrecordedEvaluation, record
from ml_assets.model.steps.scoring import prediction_profile
from ml_assets.model.steps.spec import ModelInputsSection, PipelineSpec
from ml_assets.model.steps.split_predictions import SplitWorkers, predictions_of
from ml_assets.model.steps.values import EvaluatedModel, TrainedModel, TrainingSet
from ml_assets.model.steps.window import require_nothing_rejected_since
from resources.acting import author_of_run
from resources.job.events import TrainingEvent, read_events, recoveries_of, rows_lost
from resources.job.job import TrainingResult
from resources.ledger import Person
from resources.platform import Platform
from resources.pool import PartitionPool
from resources.tracking.mlflow_client import page_of

FEWEST_ROWS = 100
"""Rows of a model that reads blobs, since each prediction decodes them again; and of one with very many columns."""
_MOST_VALUES = 200_000_000
"""Values to predict from, over all shuffled columns: about ten seconds of a small network. All of up to 316 columns of
2,000 rows; a table of a thousand columns took minutes."""


def evaluate_model(
    spec: PipelineSpec,
    platform: Platform,
    training_set: TrainingSet,
    trained: TrainedModel,
    run_id: str,
    continues: Sequence[str] = (),
) -> tuple[EvaluatedModel, Report]:
    """Score the job's weights and the models in the comparison, let the gates decide, and record the evaluation.

    `continues` names what the run is a part of, such as a backfill.
    A rejection is a normal outcome. Raises `InputsRefused` if a partition of the window was rejected since.
    """
    require_as_frozen(spec, training_set, is_trained=True)
    require_nothing_rejected_since(platform, training_set, is_trained=True)
    foreign = None
    if training_set.job.foreign:
        foreign = stored_foreign(platform.artifacts, training_set.job.model, training_set.job.foreign)
    sender, _ = author_of_run((run_id, *continues), platform.ledger.launches, platform.acting)
    with platform.pool.kept() as pool:
        made = _score(spec, platform, training_set, trained, pool, foreign, sender)
    return record(made, platform, training_set, trained, run_id, continues), made.report


def _score(
    spec: PipelineSpec,
    platform: Platform,
    training_set: TrainingSet,
    trained: TrainedModel,
    pool: PartitionPool,
    foreign: ForeignModel | None,
    sender: Person,
) -> UnrecordedEvaluation:
    """Measure the model. `foreign` is the model of a job that names one, and `sender` who launched its run."""
    job, result = training_set.job, trained.result
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest, job.schema_hash)
    events = read_events(Path(trained.folder))
    reader = TableReader(platform.lake, training_set.source_commit)
    keys = training_set.keys
    fitted = fitted_of(snapshot)
    label, objective, classes = snapshot.label, spec.evaluation.objective, fitted.classes
    rows = rows_of(reader, training_set.table, keys, snapshot, platform)
    made_by = versions_behind(reader, training_set.table, keys)
    bundle = bundle_of(
        spec,
        job,
        snapshot,
        result,
        rows["holdout"],
        made_by,
        training_set.seen,
        bundles_of(platform),
        foreign,
    )
    elsewhere = "" if foreign is None else elsewhere_in_words(foreign, sender)
    key, weight = spec.features.primary_key, snapshot.weight or None
    workers = SplitWorkers(platform=platform, pool=pool)
    measured_rows = MeasuredRows.of(spec, snapshot, rows["holdout"], bundle.facts.question, workers)
    holdout = measured_rows.holdout
    challenger = ServingModel.load(bundle.folder)
    predictions = {
        "challenger": predictions_of(challenger, rows["holdout"], key, bundle.digest, workers),
    }
    beside = comparators_of(spec, rows, fitted, challenger, measured_rows)
    predictions |= beside.predictions
    rival = rival_of(spec, platform, bundle.digest, measured_rows)
    if rival is not None and rival.predictions is not None:
        predictions["champion"] = rival.predictions
    measured = evaluate(
        holdout,
        predictions,
        spec.evaluation,
        champion=None if rival is None else rival.champion,
        own_metrics=own_metrics(spec.evaluation),
        label=label,
        weight=weight,
        classes=classes,
        baseline_name=beside.baseline_name,
        guess=beside.guess,
        reference_name=beside.reference_name,
        texts=beside.texts,
        serving=serving_cost_of(
            bundle, few_raw(spec, rows["holdout"], BATCH_ROWS), platform.artifacts, training_set.run_id
        ),
        transitions=spec.transition_gates,
    )
    shown = _shown_features(spec.features, reader, snapshot.keys("holdout"))
    report = Report(
        title=spec.name,
        partition=job.partition,
        lineage={
            "lake commit": platform.lake.commit_url(training_set.commit) or training_set.commit,
            "snapshot": job.snapshot_digest,
            "holdout rows": snapshot.index_of("holdout").sha256,
            "training fingerprint": job.fingerprint,
            **({"code of the model": job.code_version} if foreign is None else {"document": job.foreign}),
            "code of the features": bundle.facts.lineage.feature_versions[spec.features.table],
            **({} if training_set.choice is None else {"study": training_set.choice.source}),
            "days seen": f"{training_set.seen}",
            "MLflow run": page_of(platform.tracker.uri, f"runs/{trained.mlflow_run}") or trained.mlflow_run,
            "Dagster run": run_url(platform.settings.ui_url, training_set.run_id),
            "bundle": bundle.digest,
            "weights" if foreign is None else "ONNX file": result.weights_sha256,
        },
        loss=None if foreign is not None else _loss_curve(events, result),
        splits=tuple(one for one in _split_rows(snapshot) if foreign is None or one.split == "holdout"),
        recoveries=tuple(recoveries_of(events)),
        rows_lost=rows_lost(events),
        model=_model_facts(spec, training_set, elsewhere),
        evaluation=measured,
        compared=tuple(compared_models(spec, platform, measured_rows, predictions["challenger"])),
        naive=beside.naive,
        thresholds=None
        if spec.evaluation.costs is None
        else threshold_table(
            spec.evaluation.costs,
            _scored_rows(challenger, rows["validation"], label, weight, key, bundle.digest, workers),
            ScoredRows.of(holdout[label], predictions["challenger"], weights_of(holdout, weight)),
            redraws_of(holdout, spec.evaluation),
            spec.evaluation.confidence,
        ),
        worst_slices=worst_slices(
            holdout,
            predictions,
            spec.evaluation,
            label=label,
            weight=weight,
            features=rows["holdout"].each(shown),
            classes=classes,
        ),
        explanations=explanations_of(spec.evaluation, challenger, measured_rows, shown),
        predictions=prediction_profile(in_range(predictions["challenger"], objective), challenger.columns),
    )
    return UnrecordedEvaluation(
        bundle=bundle,
        report=report,
        champion_digest=None if rival is None else rival.bundle_digest,
        rules=spec.evaluation,
        transitions=spec.transition_gates,
        read=_digest_of_columns(
            reader,
            training_set,
            [*spec.evaluation.columns, *(() if rival is None else rival.columns)],
        ),
    )


def _digest_of_columns(reader: TableReader, training_set: TrainingSet, columns: Iterable[str]) -> str:
    """Return the SHA-256 of the values of `columns` in the window of the training, 64 hex digits.

    The whole window, since the naive baseline takes the means of its groups from training rows.
    """
    found = reader.values_digests(training_set.table, training_set.keys, sorted(set(columns)))
    lines = (f"{key} {digest}\n" for key, digest in found.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _model_facts(spec: PipelineSpec, training_set: TrainingSet, elsewhere: str) -> ModelFacts:
    job, columns = training_set.job, spec.features
    inputs = {
        "numeric": columns.numeric,
        "category": columns.categorical,
        "blob": (columns.blob.column,) if columns.blob else (),
    }
    return ModelFacts(
        description=spec.description,
        card=spec.card,
        table=training_set.table,
        label=columns.label,
        weight=columns.weight or "",
        inputs={kind: names for kind, names in inputs.items() if names},
        made_by=job.script or job.model_function,
        hyperparameters=dict(job.hyperparameters),
        training={} if elsewhere else job.settings.identity,
        seed=job.seed,
        study="" if training_set.choice is None else training_set.choice.source,
        values_from=training_set.values_from,
        begins_with=_begins_with(training_set),
        seen=f"{training_set.seen}",
        elsewhere=elsewhere,
    )


def _begins_with(training_set: TrainingSet) -> str:
    """Return the checkpoint or the version whose weights a training begins with; empty for random weights."""
    if (restored := training_set.job.restored) is not None:
        return restored.in_words
    return "" if training_set.initial is None else training_set.initial.version


def _split_rows(snapshot: Snapshot) -> Iterator[SplitRows]:
    for name in SPLITS:
        keys = snapshot.keys(name)
        yield SplitRows(
            split=name,
            first=keys[0],
            last=keys[-1],
            rows=snapshot.rows(name),
            left_out=dict(snapshot.excluded_of(name)),
            known_by=snapshot.cutoffs[name],
        )


def _loss_curve(events: Iterable[TrainingEvent], result: TrainingResult) -> LossCurve:
    """Return the loss curve from the events in the job's folder, so that a reused job has a curve too."""
    # By step: after a restart, a step may have reported twice.
    last = {(event.kind, event.step): event for event in events}
    return LossCurve(
        training=_points(last.values(), "metrics", "loss"),
        validation=_points(last.values(), "epoch", "validation_loss"),
        best_step=result.best_step,
    )


def _points(events: Iterable[TrainingEvent], kind: str, value: str) -> tuple[tuple[int, float], ...]:
    """Return the points of the events that carry `value`; events of a script may lack it."""
    told = (event for event in events if event.kind == kind and value in event.values)
    return tuple(sorted((event.step, event.values[value]) for event in told))


def _shown_features(features: ModelInputsSection, reader: TableReader, keys: Sequence[str]) -> list[str]:
    """Return the model's numbers and categories, without those that the contract of a partition marks as sensitive."""
    hidden: set[str] = set()
    for manifest in reader.manifests(features.table, keys).values():
        columns = manifest.profile.get("columns", {})
        hidden |= {name for name, facts in columns.items() if facts.get("hidden")}
    return [name for name in (*features.numeric, *features.categorical) if name not in hidden]


def most_rows(declared: int, columns: int, *, has_blobs: bool) -> int:
    """Return the number of rows to explain a model of so many columns on: at most `declared`, at least 100."""
    if has_blobs:
        return min(declared, FEWEST_ROWS)
    return min(declared, max(FEWEST_ROWS, _MOST_VALUES // columns**2))


def explanations_of(
    spec: EvaluationSpec, model: ServingModel, measured: MeasuredRows, shown: Sequence[str]
) -> Explanations | None:
    """Explain `model` on rows of a holdout; None if `spec` asks for no explanations.

    Only columns in `shown` are drawn, since a partial dependence names values of real rows.
    """
    if spec.explanations is None:
        return None
    most = most_rows(spec.explanations.rows, len(model.inputs), has_blobs=bool(model.blob))
    holdout, asked, weight = measured.holdout, measured.asked, measured.weight
    places = (
        few_places(holdout.height, most)
        if spec.group is None
        else places_of_few_lists(holdout[spec.group], most)
    )
    inputs = {column.name: column.kind for column in model.inputs}
    read = [*inputs, asked.label, weight or "", spec.bootstrap_unit, spec.group or ""]
    rows = with_class_ids(measured.rows.take(places, read), asked.label, asked.classes)
    if model.blob:
        rows = few_with_blobs(rows, measured.rows.table, model.blob, rows.height)

    def predict(changed: pl.DataFrame) -> NDArray[np.float64]:
        try:
            return model.predict(changed)
        except PredictionNotFinite as error:  # of rows that do not exist, the holdout has none
            raise NotPredicted(str(error)) from error

    return explain(
        rows, predict, inputs, spec, label=asked.label, weight=weight, shown=shown, classes=model.classes
    )


def _scored_rows(
    model: ServingModel,
    rows: SplitScan,
    label: str,
    weight: str | None,
    primary_key: Sequence[str],
    digest: str,
    workers: SplitWorkers,
) -> ScoredRows:
    frame = rows.read([label, weight or ""])
    predictions = predictions_of(model, rows, primary_key, digest, workers)
    return ScoredRows.of(frame[label], predictions, weights_of(frame, weight))

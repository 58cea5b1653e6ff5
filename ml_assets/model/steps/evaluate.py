"""Step 4: bundle the weights, score the holdout as serving would, and let the gates decide.

Bundles score challenger and champion on the same rows; no stored metric of the champion is read. The index of the
snapshot names the rows; this step chooses none.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.days import Days
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.steps.blob_decoding import decoder_of, few_with_blobs, predicted
from ml_assets.model.steps.champion import MeasuredRows, rival_of
from ml_assets.model.steps.compared import compared_models
from ml_assets.model.steps.explained import explanations_of
from ml_assets.model.steps.identity import require_as_frozen
from ml_assets.model.steps.links import run_url
from ml_assets.model.steps.metric_functions import own_metrics
from ml_assets.model.steps.record import UnrecordedEvaluation, record
from ml_assets.model.steps.scoring import prediction_profile
from ml_assets.model.steps.serving_measurement import serving_cost_of
from ml_assets.model.steps.shown_columns import shown_features
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.texts import counted_models
from ml_assets.model.steps.values import EvaluatedModel, TrainedModel, TrainingSet
from ml_assets.model.steps.window import require_nothing_rejected_since
from resources.job.events import TrainingEvent, read_events
from resources.job.job import TrainingJob, TrainingResult
from resources.job.recoveries import recoveries_of, rows_lost
from resources.platform import Platform
from resources.tracking.mlflow_client import page_of

if TYPE_CHECKING:
    import polars as pl
    from torch import nn

    from ml_assets.data.snapshots.split_reader import Snapshot
    from ml_assets.model.evaluation.report_document import LossCurve, ModelFacts, Report, SplitRows
    from ml_assets.model.release.bundle_store import Bundle, BundleStore
    from ml_assets.model.release.facts import Lineage
    from ml_assets.model.release.matrix import MatrixGraph


def evaluate_model(
    spec: PipelineSpec, platform: Platform, training_set: TrainingSet, trained: TrainedModel, run_id: str
) -> "tuple[EvaluatedModel, Report]":
    """Score the job's weights and the models in the comparison, let the gates decide, and record the evaluation.

    A rejection is a normal outcome. Raises `InputsRefused` if a partition of the window was rejected since.
    """
    require_as_frozen(spec, training_set, is_trained=True)
    require_nothing_rejected_since(platform, training_set, is_trained=True)
    made = _score(spec, platform, training_set, trained)
    return record(made, platform, training_set, trained, run_id), made.report


def _score(
    spec: PipelineSpec, platform: Platform, training_set: TrainingSet, trained: TrainedModel
) -> UnrecordedEvaluation:
    from ml_assets.data.features.encoding import class_ids
    from ml_assets.data.snapshots.fitted import fitted_of
    from ml_assets.data.snapshots.split_reader import open_snapshot
    from ml_assets.data.snapshots.split_rows import rows_of
    from ml_assets.model.evaluation.comparison.baseline import naive_baseline
    from ml_assets.model.evaluation.comparison.holdout import evaluate
    from ml_assets.model.evaluation.comparison.holdout_rows import in_range, redraws_of
    from ml_assets.model.evaluation.comparison.reference import reference_model
    from ml_assets.model.evaluation.comparison.thresholds import ScoredRows, threshold_table
    from ml_assets.model.evaluation.comparison.worst_slices import worst_slices
    from ml_assets.model.evaluation.metrics.row_weights import weights_of
    from ml_assets.model.evaluation.report_document import Report
    from ml_assets.model.release.of_platform import bundles_of
    from ml_assets.model.release.runtime import ServingModel

    job, result = training_set.job, trained.result
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest, job.schema_hash)
    events = read_events(Path(trained.folder))
    reader = TableReader(platform.lake, training_set.source_commit)
    keys = training_set.keys
    table = reader.scan(training_set.table, keys)
    rows = rows_of(table, snapshot)
    holdout, train, validation = rows["holdout"], rows["train"], rows["validation"]
    fitted = fitted_of(snapshot)
    made_by = versions_behind(reader, training_set.table, keys)
    bundle, raw = bundle_of(
        spec, job, snapshot, result, holdout, table, made_by, training_set.seen, bundles_of(platform)
    )
    label, objective, classes = snapshot.label, spec.evaluation.objective, fitted.classes
    group, key, weight = spec.evaluation.group, spec.features.primary_key, snapshot.weight or None
    if classes:
        train, validation, holdout = (
            rows.with_columns(class_ids(rows[label], classes).alias(label))
            for rows in (train, validation, holdout)
        )
    challenger = ServingModel.load(bundle.folder)
    predictions = {"challenger": predicted(challenger, holdout, table, key)}
    texts = None
    if facts_of(objective).has_tokens:
        counted = counted_models(spec.features, challenger, train, holdout, table)
        predictions |= counted.predictions
        names, texts = (counted.baseline_name, counted.reference_name), counted.figures
    else:
        baseline = naive_baseline(
            train,
            validation,
            spec.evaluation.baseline,
            objective,
            label=label,
            weight=weight,
            classes=len(classes),
            group=group,
        )
        reference = reference_model(
            train,
            validation,
            fitted.encode,
            objective,
            label=label,
            weight=weight,
            classes=len(classes),
            group=group,
        )
        predictions |= {"baseline": baseline.predict(holdout), "reference": reference.predict(holdout)}
        names = baseline.name, reference.name
    rows_asked = MeasuredRows(
        holdout=holdout,
        weight=weight,
        partitions=snapshot.keys("holdout"),
        cadence=spec.partitions.as_cadence,
        table=table,
        asked=bundle.facts.question,
        primary_key=key,
    )
    rival = rival_of(spec, platform, bundle.digest, rows_asked)
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
        baseline_name=names[0],
        reference_name=names[1],
        texts=texts,
        serving=serving_cost_of(bundle, raw, platform.artifacts, training_set.run_id),
        transitions=spec.transition_gates,
    )
    shown = shown_features(spec.features, reader, snapshot.keys("holdout"))
    report = Report(
        title=spec.name,
        partition=job.partition,
        lineage={
            "lake commit": platform.lake.commit_url(training_set.commit) or training_set.commit,
            "snapshot": job.snapshot_digest,
            "holdout rows": snapshot.index_of("holdout").sha256,
            "training fingerprint": job.fingerprint,
            "code of the model": job.code_version,
            "code of the features": bundle.facts.lineage.feature_versions[spec.features.table],
            **({} if training_set.choice is None else {"study": training_set.choice.source}),
            "days seen": f"{training_set.seen}",
            "MLflow run": page_of(platform.tracker.uri, f"runs/{trained.mlflow_run}") or trained.mlflow_run,
            "Dagster run": run_url(platform.settings.ui_url, training_set.run_id),
            "bundle": bundle.digest,
            "weights": result.weights_sha256,
        },
        loss=_loss_curve(events, result),
        splits=tuple(_split_rows(snapshot)),
        recoveries=tuple(recoveries_of(events)),
        rows_lost=rows_lost(events),
        model=_model_facts(spec, training_set),
        evaluation=measured,
        compared=tuple(compared_models(spec, platform, rows_asked, predictions["challenger"])),
        thresholds=None
        if spec.evaluation.costs is None
        else threshold_table(
            spec.evaluation.costs,
            ScoredRows.of(
                validation[label],
                predicted(challenger, validation, table, key),
                weights_of(validation, weight),
            ),
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
            features=shown,
            classes=classes,
        ),
        explanations=explanations_of(
            spec.evaluation, challenger, holdout, table, label=label, weight=weight, shown=shown
        ),
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


def _trained(job: TrainingJob, snapshot: "Snapshot", result: TrainingResult) -> "nn.Module | MatrixGraph":
    from resources.job.errors import UnmeasuredModel

    weights = Path(result.weights)
    if not result.has_weights(weights):
        raise UnmeasuredModel(
            f"{weights} is not the file that the training of {job.model} {job.partition} left: it is missing, or its "
            f"SHA-256 is not {result.weights_sha256[:12]}…. Materialize {job.model} {job.partition} again, which makes "
            "the file from the last checkpoint"
        )
    if job.script:
        from ml_assets.model.release.matrix import MatrixGraph
        from ml_assets.model.training.script.script_model import read_model

        model = read_model(weights)
        return MatrixGraph(model) if isinstance(model, bytes) else model

    from ml_assets.model.training.measured import refuse_other_export
    from ml_assets.model.training.step.load import load_model

    model = load_model(job, snapshot.inputs, weights)
    refuse_other_export(job, snapshot, model, result)
    return model


def bundle_of(
    spec: PipelineSpec,
    job: TrainingJob,
    snapshot: "Snapshot",
    result: TrainingResult,
    holdout: "pl.DataFrame",
    table: "pl.LazyFrame",
    made_by: str,
    seen: Days,
    store: "BundleStore",
) -> "tuple[Bundle, pl.DataFrame]":
    """Build the bundle of a finished training in `store`; return it with the raw rows from which its golden rows come.

    `holdout` are the raw rows of the holdout, `table` all rows of the window, `made_by` the code versions behind them,
    `seen` the days behind the weights.
    """
    from ml_assets.data.snapshots.fitted import fitted_of
    from ml_assets.model.release.bundle import BundleContents, build_bundle
    from ml_assets.model.release.golden import GOLDEN_BLOBS

    decode = decoder_of(spec.features)
    raw = holdout if decode is None else few_with_blobs(holdout, table, decode.column, GOLDEN_BLOBS)
    contents = BundleContents(
        module=_trained(job, snapshot, result),
        fitted=fitted_of(snapshot),
        objective=facts_of(spec.evaluation.objective).trained_as,
        rows=raw,
        lineage=_lineage(spec, job, snapshot, result, made_by, seen),
        metrics={"best_validation_loss": result.best_validation_loss},
        decode=decode,
        vocabulary=snapshot.inputs.vocabulary,
    )
    return build_bundle(contents, store), raw


def versions_behind(reader: TableReader, table: str, keys: Sequence[str]) -> str:
    """Return the code versions that made these partitions, in the order of the keys, joined by `+`."""
    made_by = (manifest.code_version for manifest in reader.manifests(table, keys).values())
    return "+".join(dict.fromkeys(made_by))


def _lineage(
    spec: PipelineSpec,
    job: TrainingJob,
    snapshot: "Snapshot",
    result: TrainingResult,
    features_version: str,
    seen: Days,
) -> "Lineage":
    from ml_assets.data.snapshots.split_reader import SPLITS
    from ml_assets.model.release.facts import Lineage

    return Lineage(
        model=spec.name,
        fingerprint=job.fingerprint,
        snapshot_digest=job.snapshot_digest,
        label=snapshot.label,
        windows={split: (snapshot.keys(split)[0], snapshot.keys(split)[-1]) for split in SPLITS},
        seen=seen,
        schema_hash=snapshot.schema_hash,
        code_version=job.code_version,
        weights_sha256=result.weights_sha256,
        feature_versions={spec.features.table: features_version},
        configuration={
            "hyperparameters": job.hyperparameters,
            "training": job.settings.identity,
            "seed": job.seed,
            **({} if spec.model.init_from is None else {"init_from": spec.model.init_from}),
            **({"weight": snapshot.weight} if snapshot.weight else {}),
            **({"decode": job.decode} if job.decode else {}),
        },
    )


def _model_facts(spec: PipelineSpec, training_set: TrainingSet) -> "ModelFacts":
    from ml_assets.model.evaluation.report_document import ModelFacts

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
        training=job.settings.identity,
        seed=job.seed,
        study="" if training_set.choice is None else training_set.choice.source,
        values_from=training_set.values_from,
        begins_with="" if training_set.initial is None else training_set.initial.version,
        seen=f"{training_set.seen}",
    )


def _split_rows(snapshot: "Snapshot") -> "Iterator[SplitRows]":
    from ml_assets.data.snapshots.split_reader import SPLITS
    from ml_assets.model.evaluation.report_document import SplitRows

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


def _loss_curve(events: Iterable[TrainingEvent], result: TrainingResult) -> "LossCurve":
    """Return the loss curve from the events in the job's folder, so that a reused job has a curve too."""
    from ml_assets.model.evaluation.report_document import LossCurve

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

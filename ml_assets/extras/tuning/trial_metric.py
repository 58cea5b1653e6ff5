"""Metric of a trial: the weights of its best epoch, scored on the validation rows as an evaluation scores a holdout.

A bundle makes the predictions, and the code of the evaluation measures them. The bundle is deleted afterwards; its
golden rows are validation rows, so nothing here reads the holdout. Not here: the direction of a metric
(`steps.study_metric`), intervals and gates (`evaluation`).
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.snapshots.builder import fitted_of
from ml_assets.data.snapshots.split_reader import Snapshot, open_snapshot
from ml_assets.data.snapshots.split_rows import SplitScan, rows_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.model.evaluation.comparison.holdout_rows import in_range, labels_of, lists_of, prediction_fault
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError, weights_of
from ml_assets.model.release.bundle import ParityBroken
from ml_assets.model.release.bundle_store import BundleStore
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.runtime import BundleRefused, GraphFailed, InputRefused, ServingModel
from ml_assets.model.steps.bundling import bundle_of
from ml_assets.model.steps.champion import with_class_ids
from ml_assets.model.steps.declared_functions import own_metrics
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.split_predictions import predictions_of
from ml_assets.model.steps.values import TrainingSet
from resources.artifacts import FolderArtifacts
from resources.files import unfinished_folder
from resources.job.job import TrainingResult
from resources.platform import Platform


class NotMeasured(Exception):
    """The metric has no finite value for a trial. Only the study handles it."""

    def __init__(self, why: str, *, may_pass: bool) -> None:
        """`may_pass`: the next launch may measure it, such as with a file that the metric reads."""
        super().__init__(why)
        self.may_pass = may_pass


def trial_metric(
    spec: PipelineSpec, platform: Platform, training_set: TrainingSet, result: TrainingResult, name: str
) -> float:
    """Return the metric `name` of a finished training on the validation rows of its snapshot.

    Raises `NotMeasured` if the model cannot be scored, or if the metric is not defined on these rows, and
    `UnmeasuredModel` if the file of the weights is missing.
    """
    job = training_set.job
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest, job.schema_hash)
    reader = TableReader(platform.lake, training_set.source_commit)
    rows = rows_of(reader, training_set.table, training_set.keys, snapshot)["validation"]
    try:
        # Beside the bundles: there is room for another one, and the next bundle deletes what a kill leaves.
        with unfinished_folder(bundles_of(platform).root) as folder:
            store = BundleStore(FolderArtifacts(folder))
            bundle = bundle_of(spec, job, snapshot, result, rows, "", training_set.seen, store)
            model = ServingModel.load(bundle.folder)
            predictions = predictions_of(model, rows, spec.features.primary_key)
        value = _measured(spec, snapshot, rows, predictions, name)
    except (BundleRefused, EvaluationInputError, GraphFailed, InputRefused, ParityBroken) as error:
        raise NotMeasured(f"{type(error).__name__}: {error}", may_pass=True) from error
    if not math.isfinite(value):
        said = f"its {name} of {rows.height:,} validation rows was {value:g}"
        raise NotMeasured(said, may_pass=False)
    return value


def _measured(
    spec: PipelineSpec, snapshot: Snapshot, rows: SplitScan, predictions: NDArray[np.float64], name: str
) -> float:
    asked, label, classes = spec.evaluation, snapshot.label, fitted_of(snapshot).classes
    if fault := prediction_fault(predictions, asked.objective):
        raise EvaluationInputError(f"its predictions {fault}")
    frame = with_class_ids(rows.read([label, snapshot.weight, *asked.columns]), label, classes)
    y, p = labels_of(frame, label, asked, classes), in_range(predictions, asked.objective)
    w = weights_of(frame, snapshot.weight or None)
    for own in own_metrics(asked):
        if own.facts.name == name:
            return own.value(y, p, own.groups_of(frame), w)
    return metric_named(name, asked.objective).value(y, p, w=w, lists=lists_of(frame, asked.group))

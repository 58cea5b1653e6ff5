"""Bundle of a finished training: building it, and measuring its latency and size, in the process of a step.

A run measures a bundle once and keeps the figures among the artifacts. A retried step reads them, so it makes the
same evaluation again. Not here: a bundle's format (`release.bundle`), the document of a measurement and the gates on it
(`evaluation_document`, `comparison.gates`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import polars as pl
from torch import nn

from ml_assets.data.snapshots.builder import fitted_of
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.days import Days
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.comparison.holdout_rows import few_places, few_rows
from ml_assets.model.evaluation.evaluation_document import Latency, ServingCost
from ml_assets.model.release.bundle import GOLDEN_BLOBS, GOLDEN_ROWS, BundleContents, build_bundle
from ml_assets.model.release.bundle_store import Bundle, BundleStore, Lineage
from ml_assets.model.release.foreign_document import ForeignModel
from ml_assets.model.release.foreign_graph import fitted_for
from ml_assets.model.release.onnx_graph import MatrixGraph
from ml_assets.model.release.runtime import ServingModel
from ml_assets.model.steps.blobs import decoder_of, few_with_blobs
from ml_assets.model.steps.foreign import checked_graph_of, facts_for_bundle
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.training.measured import refuse_other_export
from ml_assets.model.training.script.graph import read_model
from ml_assets.model.training.step.load import load_model
from resources.artifacts import Artifacts
from resources.environment import machine
from resources.files import whole_file
from resources.job.errors import UnmeasuredModel
from resources.job.job import TrainingJob, TrainingResult

COSTS = "serving_costs"
"""Folder of all measurements among the artifacts."""
BATCH_ROWS = 1_000
"""Rows of a batch; fewer if the holdout has fewer, or if rows have blobs."""
THREADS = 1
_MOST_CALLS = 1_000
_FEWEST_CALLS = 20
_SECONDS = 1.0
"""Seconds after which no further call begins, once there are `_FEWEST_CALLS`. A large network takes seconds a batch."""
_WARM = 3
"""Calls before the first measured one. The first call of a session allocates its memory."""


def bundle_of(
    spec: PipelineSpec,
    job: TrainingJob,
    snapshot: Snapshot,
    result: TrainingResult,
    rows: SplitScan,
    made_by: str,
    seen: Days,
    store: BundleStore,
    foreign: ForeignModel | None = None,
) -> Bundle:
    """Build the bundle of a finished training in `store`, with golden rows from `rows`.

    `made_by` are the code versions behind the rows, `seen` the days behind the weights. `foreign` is the model of a job
    that names one.
    """
    decode = decoder_of(spec.features)
    fitted = fitted_of(snapshot)
    if foreign is not None:
        fitted = fitted_for(foreign, fitted.classes, fitted.label)
    contents = BundleContents(
        module=_trained(job, snapshot, result)
        if foreign is None
        else MatrixGraph(checked_graph_of(spec, foreign)),
        fitted=fitted,
        objective=facts_of(spec.evaluation.objective).trained_as,
        rows=few_raw(spec, rows, GOLDEN_ROWS),
        lineage=_lineage(spec, job, snapshot, result, made_by, seen, foreign),
        metrics={} if foreign is not None else {"best_validation_loss": result.best_validation_loss},
        decode=decode,
        vocabulary=snapshot.inputs.vocabulary,
    )
    return build_bundle(contents, store)


def few_raw(spec: PipelineSpec, rows: SplitScan, most: int) -> pl.DataFrame:
    """Return at most `most` evenly spread raw rows with the columns that the model reads; `GOLDEN_BLOBS` with blobs."""
    features, decode = spec.features, decoder_of(spec.features)
    most = most if decode is None else GOLDEN_BLOBS
    few = rows.take(few_places(rows.height, most), [*features.numeric, *features.categorical])
    return few if decode is None else few_with_blobs(few, rows.table, decode.column, most)


def versions_behind(reader: TableReader, table: str, keys: Sequence[str]) -> str:
    """Return the code versions that made these partitions, in the order of the keys, joined by `+`."""
    made_by = (manifest.code_version for manifest in reader.manifests(table, keys).values())
    return "+".join(dict.fromkeys(made_by))


def _lineage(
    spec: PipelineSpec,
    job: TrainingJob,
    snapshot: Snapshot,
    result: TrainingResult,
    features_version: str,
    seen: Days,
    foreign: ForeignModel | None,
) -> Lineage:
    return Lineage(
        model=spec.name,
        fingerprint=job.fingerprint,
        snapshot_digest=job.snapshot_digest,
        label=snapshot.label,
        windows={
            split: (snapshot.keys(split)[0], snapshot.keys(split)[-1])
            for split in SPLITS
            if foreign is None or split == "holdout"
        },
        seen=seen,
        schema_hash=snapshot.schema_hash,
        code_version=job.code_version,
        weights_sha256=result.weights_sha256,
        feature_versions={spec.features.table: features_version},
        configuration=facts_for_bundle(foreign)
        if foreign is not None
        else {
            "hyperparameters": job.hyperparameters,
            "training": job.settings.identity,
            "seed": job.seed,
            **({} if spec.model.init_from is None else {"init_from": spec.model.init_from}),
            **({} if job.restored is None else {"restored_from": job.restored.in_words}),
            **({"weight": snapshot.weight} if snapshot.weight else {}),
            **({"decode": job.decode} if job.decode else {}),
        },
    )


def _trained(job: TrainingJob, snapshot: Snapshot, result: TrainingResult) -> nn.Module | MatrixGraph:
    weights = Path(result.weights)
    if not result.has_weights(weights):
        raise UnmeasuredModel(
            f"{weights} is not the file that the training of {job.model} {job.partition} left: it is missing, or its "
            f"SHA-256 is not {result.weights_sha256[:12]}…. Materialize {job.model} {job.partition} again, which makes "
            "the file from the last checkpoint"
        )
    if job.script:
        model = read_model(weights)
        return MatrixGraph(model) if isinstance(model, bytes) else model

    model = load_model(job, snapshot.inputs, weights)
    refuse_other_export(job, snapshot, model, result)
    return model


def serving_cost_of(bundle: Bundle, rows: pl.DataFrame, artifacts: Artifacts, run_id: str) -> ServingCost:
    """Return latency and size of `bundle`, measured on `rows` unless this run has measured it before.

    `rows` are raw rows with all columns that the bundle reads.
    """
    name, file = f"{COSTS}/{bundle.digest}", f"{run_id}.json"
    if artifacts.exists(name, file):
        return ServingCost.model_validate_json((artifacts.pull(name, [file]) / file).read_bytes())
    found = _measured(bundle, rows)
    with whole_file(artifacts.folder(name) / file) as target:
        target.write_text(found.model_dump_json())
    artifacts.push(name, [file])
    return found


def _measured(bundle: Bundle, rows: pl.DataFrame) -> ServingCost:
    model = ServingModel.load(bundle.folder, threads=THREADS)
    batch = few_rows(rows, BATCH_ROWS)
    return ServingCost(
        row=_latency(_rows(model, batch), 1),
        batch=_latency(cycle([lambda: model.predict(batch)]), batch.height),
        bundle_bytes=bundle.bytes,
        threads=THREADS,
        machine=machine(),
    )


def _rows(model: ServingModel, frame: pl.DataFrame) -> Iterator[Callable[[], object]]:
    """Yield calls that predict one row each, in turn and again."""
    # Ready mappings: a server gets its row from a request, not from a frame.
    return cycle([lambda row=row: model.predict_row(row) for row in frame.iter_rows(named=True)])


def _latency(calls: Iterator[Callable[[], object]], rows: int) -> Latency:
    for _ in range(_WARM):
        next(calls)()
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < _MOST_CALLS and (len(taken) < _FEWEST_CALLS or time.perf_counter() - begin < _SECONDS):
        call = next(calls)
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    p50, p99 = (round(float(1e3 * found), 6) for found in np.percentile(taken, [50, 99]))
    return Latency(rows=rows, calls=len(taken), p50_ms=p50, p99_ms=p99)

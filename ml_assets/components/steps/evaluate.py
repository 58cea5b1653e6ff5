"""Step 4: bundle the weights, score the holdout as it would be served, and judge.

Challenger and champion are scored through their bundles on the same rows; no stored metric of the champion is
read. The holdout is read once.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import run_url
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.steps.champion import rival_of
from ml_assets.components.steps.evaluation import Judged, record, show
from ml_assets.components.steps.inputs import require_nothing_rejected_since, trained_on
from ml_assets.components.steps.samples import decoder_of, few_with_samples, predicted
from ml_assets.components.steps.snapshot import require_as_frozen, row_choice
from ml_assets.tables.reader import TableReader
from resources.job.events import RESULT, TrainingEvent, read_events
from resources.job.job import TrainingJob, TrainingResult
from resources.job.recoveries import recoveries_of, rows_lost
from resources.mlflow_client import page_of
from resources.platform import Platform

if TYPE_CHECKING:
    from torch import nn

    from ml_assets.evaluation.result import LossCurve, SplitRows
    from ml_assets.release.matrix import MatrixGraph
    from ml_assets.snapshots.reader import Snapshot


def evaluate_op(spec: TrainingPipelineSpec, gate: str, evaluation: dg.AssetKey) -> dg.OpDefinition:
    """Record the decision: a rejection is a normal outcome of a green run."""

    @dg.op(
        name=f"{spec.name}__evaluate",
        out={"evaluation": dg.Out(), "gate": dg.Out(is_required=False)},
        description="Score challenger, champion, naive baseline and a regression on the same holdout; judge the gates.",
        retry_policy=RETRY_TRANSIENT,
    )
    def evaluate(
        context: dg.OpExecutionContext,
        platform: dg.ResourceParam[Platform],
        snapshot: dict[str, Any],
        checkpoint: dict[str, Any],
    ) -> Iterator[Any]:
        with final_unless_transient():
            partition = context.partition_key
            require_as_frozen(spec, partition, snapshot, is_trained=True)
            require_nothing_rejected_since(spec, platform, partition, snapshot, is_trained=True)
            judged = evaluate_job(spec, platform, partition, snapshot, checkpoint)
            row, files = record(judged, platform, context.run_id)
            yield from show(spec, judged, row, files, checkpoint, gate, evaluation, platform)

    return evaluate


def evaluate_job(
    spec: TrainingPipelineSpec,
    platform: Platform,
    partition: str,
    snapshot_facts: dict[str, Any],
    checkpoint: dict[str, Any],
) -> Judged:
    """Score the job's weights and the models they are compared with; judge by the gates."""
    from ml_assets.evaluation.baseline import GroupMeans
    from ml_assets.evaluation.evaluate import evaluate
    from ml_assets.evaluation.reference import LinearReference
    from ml_assets.evaluation.result import Report
    from ml_assets.features.encoding import FittedState
    from ml_assets.release.bundle import BundleContents, build_bundle
    from ml_assets.release.golden import GOLDEN_SAMPLES
    from ml_assets.release.parts import bundles_of
    from ml_assets.release.runtime import ServingModel
    from ml_assets.snapshots.reader import FITTED, open_snapshot
    from ml_assets.snapshots.rows import choose_rows, require_same_choice

    job = TrainingJob.from_json(snapshot_facts["job"])
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest, job.schema_hash)
    result = TrainingResult.read(Path(checkpoint["folder"]) / RESULT)
    events = read_events(Path(checkpoint["folder"]))
    reader = TableReader(platform.lake, snapshot_facts["source_commit"])
    keys = snapshot_facts["keys"]
    table = reader.scan(spec.features.table, keys)
    chosen = choose_rows(table, *row_choice(spec, keys))
    require_same_choice(chosen, snapshot)
    holdout, train = chosen.of("holdout"), chosen.of("train")
    decode = decoder_of(spec.features)
    fitted = FittedState.from_json((snapshot.folder / FITTED).read_text())
    bundle = build_bundle(
        BundleContents(
            module=_trained(job, snapshot, Path(result.weights)),
            fitted=fitted,
            objective=spec.evaluation.objective,
            rows=holdout
            if decode is None
            else few_with_samples(holdout, table, decode.column, GOLDEN_SAMPLES),
            lineage=_lineage(spec, job, snapshot, result, _versions(reader, spec.features.table, keys)),
            metrics={"best_validation_loss": result.best_validation_loss},
            decode=decode,
        ),
        bundles_of(platform),
    )
    label = spec.features.label
    baseline = GroupMeans.best(
        train, chosen.of("validation"), spec.evaluation.baseline, spec.evaluation.objective, label=label
    )
    reference = LinearReference.fit(
        train, chosen.of("validation"), fitted.encode, spec.evaluation.objective, label=label
    )
    predictions = {
        "challenger": predicted(ServingModel.load(bundle.folder), holdout, table),
        "baseline": baseline.predict(holdout),
        "reference": reference.predict(holdout),
    }
    rival = rival_of(spec, platform, bundle.digest, chosen, table)
    if rival is not None and rival.predictions is not None:
        predictions["champion"] = rival.predictions
    measured = evaluate(
        holdout,
        predictions,
        spec.evaluation,
        champion=None if rival is None else rival.champion,
        label=label,
        baseline_name=baseline.name,
        reference_name=reference.name,
    )
    report = Report(
        title=spec.name,
        partition=partition,
        lineage={
            "lake commit": platform.lake.commit_url(snapshot_facts["commit"]) or snapshot_facts["commit"],
            "snapshot": job.snapshot_digest,
            "training fingerprint": job.fingerprint,
            "MLflow run": page_of(platform.tracker.uri, f"runs/{checkpoint['mlflow_run']}")
            or checkpoint["mlflow_run"],
            "Dagster run": run_url(platform.settings.ui_url, snapshot_facts["run_id"]),
            "bundle": bundle.digest,
            "weights": result.weights_sha256,
        },
        loss=_loss_curve(events, result),
        splits=tuple(_split_rows(snapshot)),
        recoveries=tuple(recoveries_of(events)),
        rows_lost=rows_lost(events),
        evaluation=measured,
    )
    return Judged(
        bundle=bundle,
        report=report,
        champion_digest=None if rival is None else rival.bundle_digest,
        trained_on=trained_on(spec, snapshot_facts),
    )


def _trained(job: TrainingJob, snapshot: "Snapshot", weights: Path) -> "nn.Module | MatrixGraph":
    if job.entry:
        from ml_assets.release.matrix import MatrixGraph
        from ml_assets.training.script.model import read_model

        model = read_model(weights)
        return MatrixGraph(model) if isinstance(model, bytes) else model

    from ml_assets.training.step.load import load_model

    return load_model(job, snapshot.inputs, weights)


def _versions(reader: TableReader, table: str, keys: Sequence[str]) -> str:
    """Return the code versions that made these partitions, in the order of the keys, joined by `+`."""
    made_by = (manifest.code_version for manifest in reader.manifests(table, keys).values())
    return "+".join(dict.fromkeys(made_by))


def _lineage(
    spec: TrainingPipelineSpec,
    job: TrainingJob,
    snapshot: "Snapshot",
    result: TrainingResult,
    features_version: str,
) -> Any:
    from ml_assets.release.facts import Lineage
    from ml_assets.snapshots.reader import SPLITS

    return Lineage(
        model=spec.name,
        fingerprint=job.fingerprint,
        snapshot_digest=job.snapshot_digest,
        windows={split: (snapshot.keys(split)[0], snapshot.keys(split)[-1]) for split in SPLITS},
        schema_hash=snapshot.schema_hash,
        code_version=job.code_version,
        weights_sha256=result.weights_sha256,
        feature_versions={spec.features.table: features_version},
        configuration={
            "hyperparameters": job.hyperparameters,
            "training": job.settings.identity,
            "seed": job.seed,
            **({} if spec.model.init_from is None else {"init_from": spec.model.init_from}),
            **({"decode": job.decode} if job.decode else {}),
        },
    )


def _split_rows(snapshot: "Snapshot") -> "Iterator[SplitRows]":
    from ml_assets.evaluation.result import SplitRows
    from ml_assets.snapshots.reader import SPLITS

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
    """From the events the job left in its folder, so that a finished job that was found again has one too."""
    from ml_assets.evaluation.result import LossCurve

    # By step: after a restart a step may have been told twice.
    last = {(event.kind, event.step): event for event in events}
    return LossCurve(
        training=_points(last.values(), "metrics", "loss"),
        validation=_points(last.values(), "epoch", "validation_loss"),
        best_step=result.best_step,
    )


def _points(events: Iterable[TrainingEvent], kind: str, value: str) -> tuple[tuple[int, float], ...]:
    """Return the points of the events that carry `value`: a script's need not."""
    told = (event for event in events if event.kind == kind and value in event.values)
    return tuple(sorted((event.step, event.values[value]) for event in told))

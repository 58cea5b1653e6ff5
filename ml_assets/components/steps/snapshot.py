"""Step 2: freeze what will be trained on, keep it from garbage collection, and describe the job."""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import commit_facts, run_url, table_of
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.steps.identity import training_code
from ml_assets.components.steps.samples import require_readable
from ml_assets.tables.reader import TableReader
from ml_assets.validation.midnight import midnight
from resources.job.job import TrainingJob
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.release.initial import InitialModel
    from ml_assets.snapshots.spec import Cutoffs, RowSpec, Split


SETTINGS = "settings"
"""Value for later steps: `settings_digest` when the training set was frozen."""


def snapshot_op(spec: TrainingPipelineSpec, current_check: str, training_set: dg.AssetKey) -> dg.OpDefinition:
    """Rows of the window at one commit, split, encoded and sharded."""

    @dg.op(
        name=f"{spec.name}__snapshot",
        out={"snapshot": dg.Out(), "inputs_current": dg.Out(is_required=False)},
        description="Freeze the window at one commit: splits, fitted encodings, shards; keep it in the lake.",
        retry_policy=RETRY_TRANSIENT,
    )
    def snapshot(
        context: dg.OpExecutionContext, platform: dg.ResourceParam[Platform], judged: dict[str, Any]
    ) -> Iterator[Any]:
        with final_unless_transient():
            yield _inputs_current(current_check, training_set, judged)
            facts, metadata = take_snapshot(spec, platform, context.partition_key, judged, context.run_id)
            yield dg.Output(
                facts,
                output_name="snapshot",
                metadata=metadata,
                data_version=dg.DataVersion(facts["snapshot_digest"]),
            )

    return snapshot


def take_snapshot(
    spec: TrainingPipelineSpec, platform: Platform, partition: str, judged: dict[str, Any], run_id: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that later steps need (JSON), and the metadata of the training set's page."""
    from ml_assets.evaluation.slices import require_slices
    from ml_assets.features.encoding import fit
    from ml_assets.snapshots.builder import build_snapshot
    from ml_assets.snapshots.keep import keep_branch, keep_snapshot
    from ml_assets.snapshots.reader import SPLITS, SourceFile
    from ml_assets.snapshots.rows import choose_rows

    columns = spec.features
    reader = TableReader(platform.lake, judged["commit"])
    chosen = choose_rows(reader.scan(columns.table, judged["keys"]), *row_choice(spec, judged["keys"]))
    require_slices(spec.evaluation, chosen.frame)
    initial = _initial_model(spec, platform)
    if initial is None:
        fitted = fit(chosen.of("train"), columns.numeric, columns.categorical, min_count=columns.min_count)
    else:
        fitted = initial.fitted_for(columns.numeric, columns.categorical, chosen.split.holdout)
    snapshot = build_snapshot(
        chosen,
        fitted,
        source_commit=reader.commit_id,
        files=[SourceFile(path=f.path, sha256=f.sha256) for f in reader.files(columns.table, judged["keys"])],
        into=platform.settings.cache_folder / "snapshots",
    )
    if spec.features.sample is not None:
        require_readable(spec.features, chosen, reader.scan(columns.table, judged["keys"]))
    weights = "" if initial is None else initial.weights_sha256
    job = training_job(spec, partition, snapshot.folder, snapshot.digest, weights, snapshot.schema_hash)
    branch = keep_branch(job.fingerprint)
    page = run_url(platform.settings.ui_url, run_id)
    link = {"dagster_run": run_id, "::lakefs::Dagster::url[url:ui]": page}
    commit = keep_snapshot(platform.lake, snapshot, spec.name, partition, branch, link)
    facts = {
        "job": job.to_json(),
        "snapshot_digest": snapshot.digest,
        "commit": commit,
        "source_commit": reader.commit_id,
        "branch": branch,
        SETTINGS: settings_digest(spec),
        "keys": judged["keys"],
        "run_id": run_id,
        "initial": None
        if initial is None
        else {
            "version": initial.version,
            "bundle": initial.bundle.digest,
            "evaluation": initial.evaluation,
        },
    }
    rows = [
        {"split": name, "partitions": len(snapshot.keys(name)), "first": snapshot.keys(name)[0],
         "last": snapshot.keys(name)[-1], "rows": snapshot.rows(name),
         "left out": snapshot.excluded_of(name).total(), "labels known by": snapshot.cutoffs[name]}
        for name in SPLITS
    ]  # fmt: skip
    metadata = {
        "splits": table_of(rows),
        "inputs": table_of(judged["inputs"]),
        "left out": dg.MetadataValue.json(snapshot.excluded),
        "dagster/row_count": sum(snapshot.rows(name) for name in SPLITS),
        "snapshot": snapshot.digest,
        **commit_facts(platform.lake, commit),
        "lake/branch": branch,
        "fingerprint": job.fingerprint,
        "split_config_hash": snapshot.split_config_hash,
        "fitted_digest": snapshot.fitted_digest,
        "schema_hash": snapshot.schema_hash,
        "shards": len(snapshot.shards),
        **({} if initial is None else {"begins with": initial.version}),
    }
    return facts, metadata


def _initial_model(spec: TrainingPipelineSpec, platform: Platform) -> "InitialModel | None":
    from ml_assets.release.initial import initial_model
    from ml_assets.release.parts import bundles_of, registry_of, releases_of

    reference = spec.model.init_from
    if reference is None:
        return None
    return initial_model(reference, releases_of(platform), registry_of(platform), bundles_of(platform))


def row_choice(spec: TrainingPipelineSpec, keys: list[str]) -> "tuple[Split, RowSpec]":
    """Return the splits of the window, and which of its rows may be taken: for training and evaluation alike."""
    from ml_assets.snapshots.spec import RowSpec, split_by_time

    window = spec.window
    split = split_by_time(keys, train=window.train, validation=window.validation, holdout=window.holdout)
    rows = RowSpec(
        partition=spec.features.partition_date,
        label=spec.features.label,
        label_known_at=spec.features.label_known_at,
        cutoffs=cutoffs_of(spec, split),
        sample=spec.features.sample.column if spec.features.sample else "",
        objective=spec.evaluation.objective,
        primary_key=spec.features.primary_key,
    )
    return split, rows


def cutoffs_of(spec: TrainingPipelineSpec, split: "Split") -> "Cutoffs":
    """Each split's labels are known when the next one begins, or an embargo earlier; the holdout's when it ends.

    Days begin at midnight in the pipeline's time zone.
    """
    from ml_assets.snapshots.spec import Cutoffs

    def begin(key: str, earlier: int = 0) -> datetime:
        first, last = spec.partitions.as_cadence.bounds(key)
        return midnight(first - earlier * (last - first + timedelta(days=1)), spec.features.time_zone)

    _, last_day = spec.partitions.as_cadence.bounds(split.holdout[-1])
    return Cutoffs(
        train=begin(split.validation[0], spec.window.embargo),
        validation=begin(split.holdout[0], spec.window.embargo),
        holdout=midnight(last_day + timedelta(days=1), spec.features.time_zone),
    )


def training_job(
    spec: TrainingPipelineSpec,
    partition: str,
    folder: Path,
    snapshot_digest: str,
    initial_weights: str = "",
    schema_hash: str = "",
) -> TrainingJob:
    """The whole of what the workers get."""
    model, code = spec.model, training_code(spec)
    return TrainingJob(
        model=spec.name,
        partition=partition,
        model_function=model.function or "",
        objective=spec.evaluation.objective,
        hyperparameters=model.hyperparameters,
        arguments=model.arguments,
        snapshot=str(folder),
        snapshot_digest=snapshot_digest,
        code_version=code.code_version,
        loop_version=code.loop_version,
        packages=dict(code.packages),
        seed=spec.seed,
        initial_weights=initial_weights,
        schema_hash=schema_hash,
        settings=spec.training,
        entry=model.entry or "",
        decode=spec.features.sample.decode if spec.features.sample else "",
    )


def settings_digest(spec: TrainingPipelineSpec) -> str:
    """SHA-256 of all that a training follows from but the data: settings, seed, code, columns, window."""
    job = training_job(spec, "", Path(), "")
    chosen = (spec.features.model_dump_json(), spec.window.model_dump_json(), spec.model.init_from or "")
    return hashlib.sha256("\n".join((job.fingerprint, *chosen)).encode()).hexdigest()


def require_as_frozen(
    spec: TrainingPipelineSpec, partition: str, snapshot: Mapping[str, Any], *, is_trained: bool = False
) -> None:
    """Refuse to go on with a training set that was frozen for other settings or code than those of now.

    A run that goes on from a failed one keeps the job of that run, while workers import the code as it is now: the
    weights would be recorded as those of code they do not come from. A model function may be edited during a training,
    too. Gates are no part of it. `dg.Failure` names what changed.
    """
    if snapshot[SETTINGS] == settings_digest(spec):
        return
    job = TrainingJob.from_json(snapshot["job"])
    now = training_job(
        spec, job.partition, Path(job.snapshot), job.snapshot_digest, job.initial_weights, job.schema_hash
    )
    changed = [
        what for what, of in _PARTS_OF_A_JOB.items() if any(getattr(job, f) != getattr(now, f) for f in of)
    ]
    kept = " Its weights are kept: with everything as it was, this run can go on." if is_trained else ""
    raise dg.Failure(
        f"{spec.name} {partition} does not go on with a training set that was frozen before "
        f"{' and '.join(changed) or 'columns or window'} changed: materialize {spec.name} {partition} again, which "
        f"trains what is declared now.{kept}",
        allow_retries=False,
    )


_PARTS_OF_A_JOB = {
    "the code of the model": ("model_function", "entry", "decode", "code_version"),
    "the platform or an installed package": ("loop_version", "packages"),
    "the settings": ("objective", "hyperparameters", "arguments", "seed", "settings"),
}
"""Parts of a training, for people → fields of the job."""


def _inputs_current(name: str, asset: dg.AssetKey, judged: dict[str, Any]) -> dg.AssetCheckResult:
    stale: dict[str, str] = judged["stale"]
    count = len(judged["keys"])
    said = f"{len(stale)} of {count} partitions are stale; trained on as main holds them"
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=not stale,
        severity=dg.AssetCheckSeverity.WARN,
        description=said if stale else f"all {count} partitions are current, at any depth",
        metadata={"stale": table_of([{"partition": key, "why": why} for key, why in stale.items()])},
    )

"""Step 2: freeze the training input, keep it from garbage collection, and describe the job."""

import dataclasses
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.builder import build_snapshot, fitted_of
from ml_assets.data.snapshots.keep import keep_branch, keep_snapshot
from ml_assets.data.snapshots.partitions import partitions_of
from ml_assets.data.snapshots.row_choice import ChosenRows, choose_rows, require_lists_begin
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, Split, split_by_time
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.days import Days, midnight
from ml_assets.foundation.links import run_url
from ml_assets.model.evaluation.comparison.holdout_rows import require_slices, require_whole_lists, slice_rows
from ml_assets.model.release.bundle_store import tokens_of
from ml_assets.model.release.foreign_document import ForeignModel
from ml_assets.model.release.initial_version import InitialModel, initial_model
from ml_assets.model.release.releases import releases_of
from ml_assets.model.steps.blobs import decoder_of, require_readable, require_tokens
from ml_assets.model.steps.foreign import require_classes, require_fit
from ml_assets.model.steps.identity import (
    foreign_job,
    require_same_training,
    settings_digest,
    training_job,
)
from ml_assets.model.steps.search_space import Choice
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.study_result import StudyResult
from ml_assets.model.steps.values import InitialVersion, TrainingSet, ValidatedWindow
from resources.job.job import RestoredState
from resources.platform import Platform
from resources.pool import PartitionPool


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Values of a model's next training."""

    result: StudyResult | None
    """Result that counts; None if the declared values are used."""
    says: str
    """The values and their origin, or the reason why no result counts, in one sentence."""

    @property
    def choice(self) -> Choice | None:
        """Values in place of the declared ones; None: the declared ones."""
        return None if self.result is None else self.result.choice

    @property
    def seen(self) -> Days:
        """Days that the values have seen; none for the declared values."""
        return Days() if self.result is None else self.result.seen


def take_snapshot(
    spec: PipelineSpec,
    platform: Platform,
    partition: str,
    validated: ValidatedWindow,
    run_id: str,
    chosen: Chosen | None = None,
    restored: RestoredState | None = None,
    foreign: ForeignModel | None = None,
) -> tuple[TrainingSet, Snapshot]:
    """Freeze the rows of the validated window: split, encoded, sharded, kept on a branch of the lake.

    The job has the values of `chosen`; without them, the declared values. It begins with the state `restored`, if the
    training of that state is the same otherwise. For a model that was trained elsewhere, `foreign`, the job has neither
    code nor settings. Raises `RestoreRefused` if it is not, `CheckpointGone`, and `ForeignModelRefused`.
    """
    if foreign is not None:
        chosen = None
        require_fit(spec, foreign, TableReader(platform.lake, validated.commit), validated.keys)
    choice = None if chosen is None else chosen.choice
    initial = None if foreign is not None else initial_of(spec, platform)
    snapshot = build_training_set(
        spec, platform, validated, initial, into=platform.settings.cache_folder / "snapshots"
    )
    weights = "" if initial is None else initial.weights_sha256
    job = training_job(
        spec.with_choice(choice), partition, snapshot.folder, snapshot.digest, weights, snapshot.schema_hash
    )
    if restored is not None:
        from ml_assets.model.training.checkpoint.restored import job_of  # loads torch

        require_same_training(job, job_of(platform.artifacts, spec.name, restored.training))
        job = dataclasses.replace(job, restored=restored)
    if foreign is not None:
        require_classes(foreign, fitted_of(snapshot).classes)
        job = foreign_job(job, foreign.digest)
    window = TableReader(platform.lake, validated.commit).objects_digest(validated.table, validated.keys)
    branch = keep_branch(job.fingerprint, window)
    page = run_url(platform.settings.ui_url, run_id)
    link = {"dagster_run": run_id, "::lakefs::Dagster::url[url:ui]": page}
    kept = keep_snapshot(platform.lake, snapshot, validated.commit, spec.name, partition, branch, link)
    frozen = TrainingSet(
        job=job,
        commit=kept.commit,
        branch=branch,
        source_commit=kept.source_commit,
        read=snapshot.source.digest,
        table=validated.table,
        keys=validated.keys,
        run_id=run_id,
        settings=settings_digest(spec, job, choice),
        seen=_seen(spec, snapshot, initial, chosen) if foreign is None else foreign.trained_on.days,
        initial=None
        if initial is None
        else InitialVersion(
            version=initial.version, bundle=initial.bundle.digest, evaluation=initial.evaluation
        ),
        choice=choice,
        values_from="" if chosen is None else chosen.says,
    )
    return frozen, snapshot


def _seen(
    spec: PipelineSpec, snapshot: Snapshot, initial: InitialModel | None, chosen: Chosen | None
) -> Days:
    """Return the days behind the weights of a training on `snapshot`."""
    seen = spec.days_of([*snapshot.keys("train"), *snapshot.keys("validation")])
    if initial is not None:
        seen |= initial.seen
    return seen if chosen is None else seen | chosen.seen


def build_training_set(
    spec: PipelineSpec,
    platform: Platform,
    validated: ValidatedWindow,
    initial: InitialModel | None,
    *,
    into: Path,
) -> Snapshot:
    """Build the snapshot of the validated window below the folder `into`. The lake is only read.

    With `initial`, its encoding is kept. Raises the errors of a window that cannot be trained on.
    """
    columns = spec.features
    reader = TableReader(platform.lake, validated.commit)
    partitions = partitions_of(reader, validated.table, validated.keys, len(spec.training_columns), platform)
    split, rows = row_choice(spec, validated.keys)
    inputs: InputColumns | FittedState = InputColumns(
        numeric=columns.numeric, categorical=columns.categorical, min_count=columns.min_count
    )
    if initial is not None:
        initial.require_unseen(spec.days_of(split.holdout))
        inputs = initial.fitted_for(columns.numeric, columns.categorical)
        objective, vocabulary = spec.evaluation.objective, (columns.blob and columns.blob.vocabulary) or 0
        initial.require_outputs(objective, tokens_of(objective, decoder_of(columns), vocabulary))
    with _kept(platform) as (pool, here):
        chosen = choose_rows(
            partitions, split, rows, inputs, into=into, pool=pool, exchange=platform.exchange
        )
        _require_lists_begin(spec, reader, validated.table, chosen)
        _require_slices(spec, chosen)
        if spec.evaluation.group is not None:
            for part in chosen.parts("holdout", [spec.evaluation.bootstrap_unit]):
                require_whole_lists(part, spec.evaluation)
        snapshot = build_snapshot(
            chosen,
            source=source_values(spec, reader, validated.table, validated.keys),
            into=into,
            pool=pool,
            here=here,
            exchange=platform.exchange,
        )
    if columns.blob is not None:
        table = reader.scan(validated.table, validated.keys)
        require_readable(columns, chosen, table)
        require_tokens(columns, chosen, table)
    return snapshot


@contextmanager
def _kept(platform: Platform) -> Generator[tuple[PartitionPool, PartitionPool]]:
    """Yield the pool of the passes, and that of this machine, which writes the shards."""
    with ExitStack() as kept:
        pool = kept.enter_context(platform.pool.kept())
        is_here = platform.pool_here is platform.pool
        yield pool, pool if is_here else kept.enter_context(platform.pool_here.kept())


def _require_slices(spec: PipelineSpec, chosen: ChosenRows) -> None:
    """Refuse a gate whose slice no row of the window has. Only the columns of such slices are read."""
    measured = spec.evaluation.also_measuring(*spec.transition_gates.values())
    gated = {gate.sliced[0] for gate in measured.gates if gate.sliced}
    cuts = [cut for cut in measured.sliced_by if cut.name in gated]
    if not cuts:
        return
    some: pl.DataFrame | None = None
    for rows in chosen.candidates([cut.column for cut in cuts]):
        # One row of each slice says as much as all of them.
        both = rows if some is None else pl.concat([some, rows])
        some = both[sorted({int(found[0]) for found in slice_rows(both, cuts).values()})]
    if some is not None:
        require_slices(measured.model_copy(update={"slices": tuple(cuts)}), some)


def source_values(spec: PipelineSpec, reader: TableReader, table: str, keys: Sequence[str]) -> SourceValues:
    """Return the values that a training of `spec` reads of the partitions `keys`, from their manifests alone.

    Raises `PartitionMissing` and `ManifestUnreadable`.
    """
    columns = spec.training_columns
    return SourceValues(table=table, columns=columns, partitions=reader.values_digests(table, keys, columns))


def _require_lists_begin(spec: PipelineSpec, reader: TableReader, table: str, chosen: ChosenRows) -> None:
    """Refuse lists that the start of the window cuts, by the rows of the partition before it, if main has them."""
    group = spec.evaluation.group
    before = spec.partitions.as_cadence.previous(chosen.split.train[0])
    if group is None or not before or before[0] not in reader.digests(table):
        return
    rows = reader.scan(table, before)
    if group in rows.collect_schema():
        require_lists_begin(chosen, rows.select(group).collect(), before[0])


def initial_of(spec: PipelineSpec, platform: Platform) -> InitialModel | None:
    """Return the version that `init_from` names now; None if it names none.

    Raises `InitialModelRefused`, `VersionMissing`, `BundleMissing`, `BundleDamaged`.
    """

    wanted = spec.model.init_from
    if wanted is None:
        return None
    return initial_model(wanted, releases_of(platform))


def row_choice(spec: PipelineSpec, keys: Sequence[str]) -> tuple[Split, RowSpec]:
    """Return the splits of the window, and the rules by which rows are chosen."""
    window = spec.window
    split = split_by_time(keys, train=window.train, validation=window.validation, holdout=window.holdout)
    rows = RowSpec(
        partition=spec.features.partition_date,
        label=spec.features.label,
        label_known_at=spec.features.label_known_at,
        cutoffs=_cutoffs(spec, split),
        blob=spec.features.blob.column if spec.features.blob else "",
        vocabulary=(spec.features.blob.vocabulary or 0) if spec.features.blob else 0,
        objective=spec.evaluation.objective,
        group=spec.evaluation.group,
        weight=spec.features.weight,
        primary_key=spec.features.primary_key,
    )
    return split, rows


def _cutoffs(spec: PipelineSpec, split: Split) -> Cutoffs:
    """Return the cutoffs: the start of the next split, an embargo earlier; for the holdout its end.

    Days begin at midnight in the pipeline's time zone.
    """

    def begin(key: str, earlier: int = 0) -> datetime:
        first, last = spec.partitions.as_cadence.bounds(key)
        return midnight(first - earlier * (last - first + timedelta(days=1)), spec.features.time_zone)

    _, last_day = spec.partitions.as_cadence.bounds(split.holdout[-1])
    return Cutoffs(
        train=begin(split.validation[0], spec.window.embargo),
        validation=begin(split.holdout[0], spec.window.embargo),
        holdout=midnight(last_day + timedelta(days=1), spec.features.time_zone),
    )

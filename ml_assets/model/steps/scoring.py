"""Batch scoring: predictions of the version in production, and of the canary beside it, for rows of the feature table.

Here: the versions, their predictions as partitions of a table, each a task of the pool, and the table's contract. Not
here: validating and landing a partition (`tables.publish`), the asset (`components.assets.predictions`), one request at
a time (`serving`).
"""

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.data.snapshots.row_choice import ROW
from ml_assets.data.tables.guard import BuildRefused
from ml_assets.data.tables.publish.prepare import MadePartition, make
from ml_assets.data.tables.publish.workers import SentPartition, received_files, send_files
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, SourceFailed, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.profile import profile
from ml_assets.data.validation.volume import VolumeRule
from ml_assets.foundation.objective_facts import ROUNDED, facts_of
from ml_assets.model.evaluation.comparison.holdout_rows import in_range
from ml_assets.model.release.runtime import BundleRefused, GraphFailed, InputRefused, ServingModel
from ml_assets.model.release.standing import BundleStandings
from ml_assets.model.steps.blobs import has_blobs, predicted
from ml_assets.model.steps.champion import CannotScore, opened
from ml_assets.model.steps.loaded_models import model_here
from ml_assets.model.steps.spec import ADDED, PREDICTIONS, PipelineSpec
from resources.ledger import Promotion
from resources.platform import Platform
from resources.pool import Handover
from resources.pool.exchange import Exchange

ONE_NUMBER = "prediction"
"""`output` of a model whose prediction is one number."""


class NothingInProduction(BuildRefused):
    """No version of the model is in production, so there is nothing to score with."""


class CanaryCannotScore(BuildRefused):
    """The canary has no predictions for some partitions. Those of production are on main."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A loaded version."""

    version: int
    """MLflow's number."""
    bundle_digest: str
    model: ServingModel


@dataclass(frozen=True, kw_only=True)
class Scorers:
    """The versions that score."""

    production: Scorer
    canary: Scorer | None
    canary_fault: str
    """Reason why the canary cannot be loaded; empty if it can, or if there is none."""


def prediction_profile(predictions: npt.NDArray[np.float64], outputs: Sequence[str]) -> dict[str, Any]:
    """Return the profile (`validation.profile`) of predictions `[N]` or `[N, K]`, a column for each output.

    `outputs` are the names of the K numbers; empty if the prediction is one number.
    """
    names = list(outputs) or [ONE_NUMBER]
    return profile(
        pl.DataFrame(predictions.reshape(len(predictions), len(names)), schema=names, orient="row")
    )


def require_production(platform: Platform, model: str) -> tuple[Promotion, BundleStandings]:
    """Return the promotion of the version in production, and all standings. Raises `NothingInProduction`."""
    standings = BundleStandings.read(platform.ledger.models, model)
    if standings.in_production is None:
        raise NothingInProduction(
            f"no version of {model} is in production, so nothing can score its rows: "
            f"ml-assets promote {model} --reason '…'"
        )
    return standings.in_production, standings


def scorers_of(platform: Platform, model: str) -> Scorers:
    """Load the version in production and the canary. Raises `NothingInProduction`, and `CannotScore` if the bundle in
    production is lost, damaged or cannot be loaded."""
    in_production, standings = require_production(platform, model)
    production = _loaded(platform, in_production)
    if standings.canary is None:
        return Scorers(production=production, canary=None, canary_fault="")
    try:
        canary, fault = _loaded(platform, standings.canary), ""
    except CannotScore as error:
        canary, fault = None, f"version {standings.canary.version}: {error}"
    return Scorers(production=production, canary=canary, canary_fault=fault)


def _loaded(platform: Platform, promotion: Promotion) -> Scorer:
    bundle = opened(platform, promotion.bundle_digest)
    try:
        model = ServingModel.load(bundle.folder, threads=len(os.sched_getaffinity(0)))
    except BundleRefused as error:
        raise CannotScore(str(error)) from error
    return Scorer(version=int(promotion.version), bundle_digest=promotion.bundle_digest, model=model)


def predictions_table(
    spec: PipelineSpec, volume: VolumeRule, types: Mapping[str, str], scorers: Scorers
) -> TableSpec:
    """Return the table `<model>/predictions`; `types` are names of types of the feature table's columns.

    A row holds the primary key of a feature row, and an `output` of the prediction: a class, or `prediction` if it is
    one number. The contract holds predictions to the range of the objective.
    """
    low, high = facts_of(spec.evaluation.objective).prediction_range
    within = {name: limit for name, limit in (("ge", low), ("le", high)) if abs(limit) != float("inf")}
    key = [{"name": name, "dtype": types[name]} for name in spec.features.primary_key]
    described = (
        {"name": "output", "dtype": "string"},
        {"name": "prediction", "dtype": "float64", **within},
        {"name": "version", "dtype": "int64", "ge": 1},
        {"name": "bundle_digest", "dtype": "string"},
        {"name": "canary_prediction", "dtype": "float64", "nullable": True, **within},
        {"name": "canary_version", "dtype": "int64", "nullable": True, "ge": 1},
        {"name": "canary_bundle_digest", "dtype": "string", "nullable": True},
    )
    made_by = [one.bundle_digest for one in (scorers.production, scorers.canary) if one is not None]
    return TableSpec(
        kind=spec.name,
        name=PREDICTIONS,
        contract=Contract.model_validate(
            {"columns": [*key, *described], "primary_key": [*spec.features.primary_key, "output"]}
        ),
        cadence=spec.partitions.as_cadence,
        volume=volume,
        code_version="+".join(made_by),
        inputs={spec.features.table: 0},
    )


@dataclass(frozen=True, kw_only=True)
class ScoringTask:
    """A partition of a feature table to score."""

    platform: Platform
    reader: TableReader
    """The lake at the run's commit."""
    spec: PipelineSpec
    table: TableSpec
    """The table of predictions."""
    scorers: Scorers
    key: str
    exchange: Exchange
    """Way of the predictions out of a worker."""

    def __getstate__(self) -> dict[str, Any]:
        """Travel to a worker with the commit in place of the reader, and digests in place of the models."""
        both = (self.scorers.production, self.scorers.canary)
        return {
            **vars(self),
            "reader": self.reader.commit_id,
            "scorers": [one and (one.version, one.bundle_digest) for one in both],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        platform: Platform = state["platform"]
        production, canary = (
            one and Scorer(version=one[0], bundle_digest=one[1], model=model_here(platform, one[1]))
            for one in state["scorers"]
        )
        scorers = Scorers(production=production, canary=canary, canary_fault="")
        vars(self).update(state, reader=TableReader(platform.lake, state["reader"]), scorers=scorers)


@dataclass(frozen=True, kw_only=True)
class ScoredPartition:
    """Outcome of a task."""

    made: MadePartition
    canary_fault: str
    """Reason why the canary has no predictions; empty if it has, and without a canary."""


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A scored partition whose files were sent."""

    made: list[SentPartition]
    canary_fault: str


def scored_partitions(
    platform: Platform,
    spec: PipelineSpec,
    table: TableSpec,
    scorers: Scorers,
    reader: TableReader,
    keys: Iterable[str],
    faults: dict[str, str],
) -> Generator[MadePartition]:
    """Yield the predictions for each of `keys`, partitions of the feature table at the reader's commit.

    Each partition is a task of the pool; a worker loads each model once. `faults` gets key → reason for partitions of
    which the canary has no predictions. Raises what `PartitionPool.map` raises.
    """
    with platform.exchange() as exchange:
        tasks = {
            f"{table.table} {key}": ScoringTask(
                platform=platform,
                reader=reader,
                spec=spec,
                table=table,
                scorers=scorers,
                key=key,
                exchange=exchange,
            )
            for key in keys
        }
        handover = Handover(_send, partial(_received, exchange))
        with closing(platform.pool.map(score_partition, tasks, handover)) as results:
            for found in results:
                if found.canary_fault:
                    faults[found.made.key] = found.canary_fault
                yield found.made


def score_partition(task: ScoringTask) -> ScoredPartition:
    """Score and prepare the partition of a task."""
    incoming, fault = scored_rows(task.spec, task.scorers, task.reader, task.key)
    return ScoredPartition(made=make(task.table, incoming), canary_fault=fault)


def _send(task: ScoringTask, found: ScoredPartition) -> _Sent:
    return _Sent(made=send_files(task.exchange, [found.made]), canary_fault=found.canary_fault)


def _received(exchange: Exchange, sent: _Sent) -> ScoredPartition:
    [made] = received_files(exchange, sent.made)
    return ScoredPartition(made=made, canary_fault=sent.canary_fault)


def scored_rows(spec: PipelineSpec, scorers: Scorers, reader: TableReader, key: str) -> tuple[Incoming, str]:
    """Return the predictions for a partition of the feature table, and the reason why the canary has none, if any.

    A partition with a row that production cannot score becomes a `SourceFailed`, which names the row. If the canary
    cannot score, its columns are null. Rows without a blob are left out, as in training.
    """
    table, fault = spec.features.table, ""
    try:
        frame, fault = _scored(spec, scorers, reader, key)
    except CannotScore as error:
        frame = SourceFailed(f"version {scorers.production.version} cannot score {table} {key}: {error}")
    incoming = Incoming(
        key=key,
        data=frame,
        inputs={table: reader.input_digests(table, [key])},
        behind=reader.behind({table: [key]}),
    )
    return incoming, fault


def _scored(spec: PipelineSpec, scorers: Scorers, reader: TableReader, key: str) -> tuple[pl.DataFrame, str]:
    rows = reader.scan(spec.features.table, [key])
    found = _predictions(spec, scorers.production, rows).rename({"number": "prediction"})
    nothing = pl.lit(None, pl.Float64).alias("canary_prediction")
    beside, fault = None, ""
    if scorers.canary is not None:
        try:
            beside = _predictions(spec, scorers.canary, rows).rename({"number": "canary_prediction"})
        except CannotScore as error:
            fault = f"version {scorers.canary.version}: {error}"
    if beside is None:
        found = found.with_columns(nothing)
    else:
        on = [*spec.features.primary_key, "output"]
        found = found.join(beside, on=on, how="left", maintain_order="left")
    canary = scorers.canary if beside is not None else None
    scored = found.with_columns(
        pl.lit(scorers.production.version, pl.Int64).alias("version"),
        pl.lit(scorers.production.bundle_digest, pl.String).alias("bundle_digest"),
        pl.lit(None if canary is None else canary.version, pl.Int64).alias("canary_version"),
        pl.lit(None if canary is None else canary.bundle_digest, pl.String).alias("canary_bundle_digest"),
    ).select(*spec.features.primary_key, *ADDED)
    return scored, fault


def _predictions(spec: PipelineSpec, scorer: Scorer, rows: pl.LazyFrame) -> pl.DataFrame:
    """Return primary key, `output` and `number` of each prediction of `rows`. Raises `CannotScore`."""
    model, key = scorer.model, spec.features.primary_key
    schema = rows.collect_schema()
    # A column that is missing is the model's to refuse.
    read = [name for name in dict.fromkeys((*key, *(one.name for one in model.inputs))) if name in schema]
    if has_blobs(schema, model.blob):
        rows = rows.filter(pl.col(model.blob).is_not_null())
        frame = rows.select(name for name in read if name != model.blob).with_row_index(ROW).collect()
    else:
        frame = rows.select(read).collect()
    try:
        found = predicted(model, frame, rows, key) if frame.height else np.empty(0)
    except (InputRefused, GraphFailed) as error:
        raise CannotScore(str(error)) from error
    allowed = in_range(found, spec.evaluation.objective)
    found = np.where(np.abs(found - allowed) <= ROUNDED, allowed, found)
    outputs: Sequence[str] = model.columns or (ONE_NUMBER,)
    return pl.concat(
        [
            frame.select(key).with_columns(
                pl.lit(output).alias("output"),
                pl.Series("number", found.reshape(frame.height, len(outputs))[:, i]),
            )
            for i, output in enumerate(outputs)
        ]
    )

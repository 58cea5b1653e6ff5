"""Snapshots, models and features as objects to look at, by name, alias or commit. Nothing here writes.

Not here: tables at a commit (`tables.reader.TableReader`), decisions about versions (`context.decisions`).
"""

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from ml_assets.components.specs import FeatureTableSpec
from ml_assets.context.errors import NotFound
from ml_assets.data.snapshots.keep import commit_that_keeps, kept_snapshot, rows_behind_kept
from ml_assets.data.snapshots.row_choice import ROW
from ml_assets.data.snapshots.split_reader import SplitName
from ml_assets.data.snapshots.split_rows import SplitScan, rows_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.column_types import polars_type
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.known_versions import number_reader_of, stage_reader_of
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.runtime import ServingModel
from ml_assets.model.release.standing import CANARY, PRODUCTION
from resources.lake import RefNotFound
from resources.platform import Platform
from resources.words import did_you_mean

_PARTITIONS_AT_ONCE = 28
_AHEAD = timedelta(days=7)
"""Largest time by which a prediction may precede the first day of its row's partition. It bounds the search for rows,
not the rows."""


class StaleAnswer(UserWarning):
    """The ledger or MLflow is away, so a name means the version that it meant when this machine last read it.

    `warnings.simplefilter("error", StaleAnswer)` refuses such an answer.
    """


@dataclass(frozen=True, kw_only=True)
class OpenedSnapshot:
    """Rows that a training read, as they were."""

    model: str
    partition: str
    commit: str
    """Commit of the lake that keeps the snapshot's documents."""
    source_commit: str
    """Commit of the lake with the rows."""
    digest: str
    label: str
    _rows: Mapping[SplitName, SplitScan]
    _folder: tempfile.TemporaryDirectory[str]
    """Documents of the snapshot, which are deleted with this object."""

    def rows(self, split: SplitName) -> pl.DataFrame:
        """Return the rows of `train`, `validation` or `holdout` with the columns of the feature table, without blobs.

        They are raw: neither filled nor standardised.
        """
        if split not in self._rows:
            raise NotFound(f"a snapshot has no split {split!r}; it has {', '.join(self._rows)}")
        rows = self._rows[split]
        return rows.read(rows.columns).drop(ROW)


def open_snapshot(platform: Platform, name: str) -> OpenedSnapshot:
    """Return the snapshot that `name` means; see `Context.open_snapshot`."""
    model, partition, commit = _kept(platform, name)
    folder = tempfile.TemporaryDirectory(prefix="snapshot-")
    snapshot = kept_snapshot(platform.lake, commit, model, partition, Path(folder.name))
    reader = TableReader(platform.lake, rows_behind_kept(platform.lake, commit))
    return OpenedSnapshot(
        model=model,
        partition=partition,
        commit=commit,
        source_commit=reader.commit_id,
        digest=snapshot.digest,
        label=snapshot.label,
        _rows=rows_of(reader, snapshot.source.table, list(snapshot.source.partitions), snapshot),
        _folder=folder,
    )


def load_model(platform: Platform, name: str, *, threads: int) -> ServingModel:
    """Return the version that `name` means, as it serves; see `Context.load_model`."""
    return ServingModel.load(_bundle(platform, name).folder, threads=threads)


@dataclass(frozen=True, kw_only=True)
class FeaturesView:
    """A feature table at one commit of the lake."""

    spec: FeatureTableSpec
    reader: TableReader
    platform: Platform

    @property
    def table(self) -> str:
        """Name of the table in the lake, `features/NAME`."""
        return f"features/{self.spec.name}"

    def online(self, entity: Mapping[str, object]) -> pl.DataFrame:
        """Return the newest row of `entity` as requests get it now, from the online store; empty without one.

        `entity` has a value for each column of `online.entity`. The store does not know commits: it holds what the
        asset `features/<name>/online` stored last. Raises `NothingOnline`, `OnlineEntityRefused`, `OnlineRowsDiffer`
        and `OnlineStoreError`.
        """
        declared = self.spec.online_table
        found = declared.newest(self.platform.online, [declared.entity_of(entity)])
        return declared.frame_of([row for row in found if row is not None])

    def at(self, entity: Mapping[str, object], time: datetime, *, days_back: int = 60) -> pl.DataFrame:
        """Return the newest rows of `entity` that a prediction at `time` could have used, without labels.

        `entity` names values of columns, such as `{"carrier": "UA", "origin": "EWR"}`. A row counts from its moment of
        prediction (`predicted_at` of the feature table); the rows with the newest such moment are returned, none if
        there is no row in partitions of the last `days_back` days. Labels are left out, because they become known
        later. Raises `NotFound` for a column that the table lacks, and `ValueError` for a time without a zone.
        """
        if time.tzinfo is None:
            raise ValueError(f"{time} has no time zone: write datetime(…, tzinfo=UTC)")
        known_by = self.spec.predicted_at
        dtypes = dict(self.spec.contract.stored_schema)
        columns = [name for name in dtypes if name not in self.spec.labels]
        if unknown := [name for name in entity if name not in columns]:
            raise NotFound(f"{self.table} has no column '{unknown[0]}'{did_you_mean(unknown[0], columns)}")
        is_entity = [
            pl.col(name).is_null() if value is None else pl.col(name) == value
            for name, value in entity.items()
        ]
        first, last = ((time + shift).date().isoformat() for shift in (-timedelta(days_back), _AHEAD))
        keys = [key for key in self.reader.keys(self.table) if first <= key <= last]
        found = pl.DataFrame(schema={name: polars_type(dtypes[name]) for name in columns})
        for end in range(len(keys), 0, -_PARTITIONS_AT_ONCE):
            rows = self.reader.scan(self.table, keys[max(0, end - _PARTITIONS_AT_ONCE) : end])
            known = rows.filter(pl.col(known_by) <= time, *is_entity).select(columns)
            found = known.filter(pl.col(known_by) == pl.col(known_by).max()).collect()
            if found.height:
                break
        return found


def _kept(platform: Platform, name: str) -> tuple[str, str, str]:
    """Return model, partition and commit of the snapshot that `name` means."""
    lake, log = platform.lake, platform.ledger.models
    if "@" not in name and "/" not in name:
        no_commit = NotFound(
            f"'{name}' is no commit that keeps a snapshot: give MODEL/PARTITION, MODEL@production, or the lake commit "
            "that a report names"
        )
        try:
            commit = lake.resolve(name)
        except RefNotFound as error:
            raise no_commit from error
        documents = lake.list(commit, "snapshots/")
        if not documents:
            raise no_commit
        _, model, partition, *_ = documents[0].path.split("/")
        return model, partition, commit
    if "@" in name:
        bundle, model = _bundle(platform, name), name.partition("@")[0]
        made = [one for one in log.evaluations(model) if one.bundle_digest == bundle.digest]
    else:
        model, _, partition = name.partition("/")
        evaluated = log.evaluations(model)
        made = [one for one in evaluated if one.partition == partition]
        if not made:
            known = sorted({one.partition for one in evaluated})
            raise NotFound(
                f"{model} was never evaluated on {partition}; it was on {', '.join(known) or 'none'}"
            )
        bundle = bundles_of(platform).open(made[-1].bundle_digest)
    newest = made[-1]
    read_at = newest.trained_on.commit
    commit = commit_that_keeps(lake, model, bundle.facts.lineage.fingerprint, bundle.digest, read_at)
    if commit is None:
        raise NotFound(
            f"the lake keeps no snapshot of {name} any more: no branch keeps the one that was read at commit "
            f"{read_at[:12]}"
        )
    return model, newest.partition, commit


def _bundle(platform: Platform, name: str) -> Bundle:
    """Return the bundle of `MODEL@production`, `MODEL@canary` or `MODEL/NUMBER`. Warn with `StaleAnswer`."""
    model, at, alias = name.partition("@")
    if not at:
        model, _, number = name.partition("/")
        if not number.isdecimal():
            raise NotFound(f"'{name}' is no version: give MODEL/NUMBER, MODEL@production or MODEL@canary")
        known = number_reader_of(platform).bundle(model, int(number))
        _warn_if_stale(name, known.stale)
        return bundles_of(platform).open(known.bundle_digest)
    if alias not in (PRODUCTION, CANARY):
        raise NotFound(f"'@{alias}' is no alias: give {model}@production or {model}@canary")
    stages = stage_reader_of(platform).stages(model)
    _warn_if_stale(name, stages.stale)
    holder = stages.production if alias == PRODUCTION else stages.canary
    if holder is None:
        raise NotFound(f"no version of {model} is {'in production' if alias == PRODUCTION else 'the canary'}")
    # By bundle: a new registry may have given the number to another version.
    return bundles_of(platform).open(holder.bundle_digest)


def _warn_if_stale(name: str, stale: str) -> None:
    if stale:
        warnings.warn(f"{name} is the last answer of this machine, {stale}", StaleAnswer, stacklevel=4)

"""Users of a partition: feature tables that read it, trainings behind whose weights it is, environments with their own.

Reads manifests and the ledger, no rows and no MLflow. Not here: the page (`partition_page`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ml_assets.data.tables.reader import TableReader
from ml_assets.model.release.bundle_standing import BundleStandings
from ml_assets.model.release.rows_behind import InputsUnknown, contents_of
from resources.lake import LakeError
from resources.lake.environment_view import branch_of
from resources.lake.lake_environment import environments
from resources.ledger import EvaluationRow
from resources.platform import Platform

MOST_TRAININGS = 50
"""Trainings whose rows are looked up, the newest ones. Each costs the manifests of its window."""


@dataclass(frozen=True, kw_only=True)
class TrainingThatRead:
    """A training behind whose weights a partition is."""

    model: str
    version: str
    """Semantic version of its bundle; empty if it was not registered."""
    stage: str
    """Stage of its bundle, or the outcome of its gates if it was not registered."""
    partition: str
    """Partition of the model."""
    first: str
    """First partition of its window."""
    last: str
    """Last partition of its window."""
    has_this_content: bool
    """False if it read rows that were replaced since."""
    run_id: str
    """Dagster run that evaluated it."""


@dataclass(frozen=True, kw_only=True)
class PartitionUsers:
    """Users of one partition."""

    tables: Mapping[str, tuple[str, ...]]
    """Feature table → its partitions on main that were made from the rows of today, sorted."""
    tables_of_earlier_rows: Mapping[str, tuple[str, ...]]
    """Feature table → its partitions on main that were made from rows that were replaced since, sorted."""
    trainings: tuple[TrainingThatRead, ...]
    """Newest first."""
    not_asked: int
    """Older trainings whose rows were not looked up."""
    unknown: tuple[str, ...]
    """Trainings, as `model partition`, whose rows the lake or the ledger no longer knows."""
    environments: Mapping[str, str]
    """Environment → `the same rows`, `other rows`, or `no such partition`."""


def users_of(platform: Platform, reader: TableReader, table: str, key: str) -> PartitionUsers:
    """Return the users of a partition that `reader`, at main, holds."""
    content = reader.digests(table)[key]
    trainings: list[TrainingThatRead] = []
    unknown: list[str] = []
    log = platform.ledger.models
    standings = {model: BundleStandings.read(log, model) for model in log.models()}
    newest: dict[tuple[str, str], EvaluationRow] = {
        (model, row.bundle_digest): row for model, one in standings.items() for row in one.evaluations
    }
    rows = sorted(newest.values(), key=lambda row: -row.place)
    names = {
        (model, one.bundle_digest): one.semantic for model in standings for one in reversed(log.names(model))
    }
    for row in rows[:MOST_TRAININGS]:
        try:
            read = {
                digest
                for name, digest in contents_of(reader.store, log, row.trained_on).get(table, ())
                if name == key
            }
        except InputsUnknown:
            unknown.append(f"{row.model} {row.partition}")
            continue
        if read:
            version = names.get((row.model, row.bundle_digest), "")
            stage = standings[row.model].of(row.bundle_digest).stage if version else row.status
            trainings.append(
                TrainingThatRead(
                    model=row.model,
                    version=version,
                    stage=stage,
                    partition=row.partition,
                    first=row.trained_on.first,
                    last=row.trained_on.last,
                    has_this_content=content in read,
                    run_id=row.run_id,
                )
            )
    readers = _readers(reader, table, key)
    return PartitionUsers(
        tables=_chosen(readers, lambda read: read == content),
        tables_of_earlier_rows=_chosen(readers, lambda read: read != content),
        trainings=tuple(trainings),
        not_asked=max(0, len(rows) - MOST_TRAININGS),
        unknown=tuple(unknown),
        environments=_environments(platform, table, key, content),
    )


def _chosen(
    readers: Mapping[str, Mapping[str, str]], counts: Callable[[str], bool]
) -> dict[str, tuple[str, ...]]:
    chosen = {
        name: tuple(key for key, read in some.items() if counts(read)) for name, some in readers.items()
    }
    return {name: keys for name, keys in chosen.items() if keys}


def _readers(reader: TableReader, table: str, key: str) -> dict[str, dict[str, str]]:
    """Return feature table → its partitions at the reader's commit that read `table` `key` → content that each read.

    The oldest and the newest partition of a table tell if it reads `table`: the others are read only then.
    """
    found: dict[str, dict[str, str]] = {}
    for name in reader.tables():
        keys = reader.keys(name)
        ends, _ = reader.checked_manifests(name, sorted({keys[0], keys[-1]}) if keys else [])
        if not any(table in manifest.inputs for manifest in ends.values()):
            continue
        sound, _ = reader.checked_manifests(name, keys)
        found[name] = {
            one: read for one, manifest in sound.items() if (read := manifest.inputs.get(table, {}).get(key))
        }
    return found


def _environments(platform: Platform, table: str, key: str, content: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in environments(platform.settings.home):
        try:
            held = TableReader.at(platform.whole_lake, branch_of(one.name)).digests(table).get(key)
        except LakeError:  # somebody drops it now
            continue
        found[one.name] = (
            "no such partition" if held is None else "the same rows" if held == content else "other rows"
        )
    return found

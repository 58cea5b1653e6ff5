"""Tags of runs and metadata of assets, by which parts of the platform recognise each other's work."""

import dagster as dg

from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.model.steps.spec import PREDICTIONS

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""First and last partition of a run over a range."""
PARTITION = "dagster/partition"
"""Partition of a run over a single partition."""
ROOT_RUN = "dagster/root_run_id"
"""Tag of a run that repeats another one: the first run of all tries."""
BACKFILL = "dagster/backfill"
"""Tag of a run that is a part of a backfill: its id."""
SCHEDULE = "dagster/schedule_name"
"""Tag of a run that a schedule requested: its name."""
WILL_RETRY = "dagster/will_retry"
"""Tag of a failed run: `true` if Dagster repeats it."""
RETRIED_AS = "dagster/auto_retry_run_id"
"""Tag of a failed run: the run that repeats it."""
DATA_VERSION = "dagster/data_version"
"""Identity of a materialization's content."""
ASKED_BY = "ml_assets/asked_by"
"""Tag of runs that the failed-upstream sensor requested: the refused run. The sensor ignores failures of such runs."""
CONTINUES = (ROOT_RUN, BACKFILL, ASKED_BY)
"""Tags of a run that name what it continues. The proxy in front of Dagster's pages lets no person set them."""
RETRAINS = "ml_assets/retraining"
"""Tag of runs that live performance requested: the reason."""
DEPRECATED = "ml_assets/deprecated"
"""Tag of the asset of a deprecated table."""
TRAINS = "train_"
"""Begin of the name of a model's job, which its schedule runs."""
RESOURCES = "ml_assets/resources"
"""Changes of the pipeline's resources for this launch, `memory=8Gi,nodes=2` or a JSON object."""
RESTORES = "ml_assets/restores"
"""Tag of a run whose training begins with a checkpoint: the run that made it, and its state, as a JSON object."""

REGISTERS = "ml_assets/registers"
"""Tag of a run that takes a model that was trained elsewhere, in place of a training: SHA-256 of its document."""

TRACE_PARENT = "ml_assets/traceparent"
"""Tag of a run that a request to the API with a header `traceparent` launched: the header."""
REQUESTED = "ml_assets/requested"
"""Tag of a run that a request to the API launched: when its launch began, in seconds since the epoch."""

COLUMN_SCHEMA = "dagster/column_schema"
"""Metadata of a table: its columns, which Dagster shows."""
LABELS = "labels"
"""Metadata of a feature table: columns that are not yet known at prediction time."""
SENSITIVE = "sensitive"
"""Metadata of a feature table: columns whose values no report shows."""
EVALUATED_SLICES = "evaluated_slices"
"""Metadata of a model with slices in its evaluation: table → the section `evaluation`, and `release.gates` as
`transitions`, as YAML, which keeps the types of values."""
LABEL_IS_CLASS = "label_is_class"
"""Metadata of a model: true if the label is a class, which may be a text."""
NAMED_COLUMNS = "columns"
"""Metadata of an asset that reads tables: table → key of its section → names of columns."""

INPUT_CADENCES = "cadences of inputs"
"""Metadata key of a feature table: input → cadence, for inputs whose cadence is not the table's."""
PARTITION_DATE = "partition_date"
"""Metadata of a feature table: its column with the first day of a row's partition."""
PREDICTED_AT = "predicted_at"
"""Metadata of a feature table: its column with the moment of prediction."""
DAYS_BEGIN_IN = "days_begin_in"
"""Metadata of a table with an event time, and of a training set: time zone in whose midnight its days begin."""
COUNTED_DRIFT = "counted drift"
"""Metadata of a training set: table → dotted key of the first limit on the number of its columns that drift."""
RELEASE = "release"
"""Metadata of `<model>/production`: the `release` section of the model."""
DECLARED = "declared"
"""Metadata of a table: its declaration, from `DeclaredTable.to_facts`. The asset's page shows it."""


def partition_of(run: dg.DagsterRun) -> str:
    """Return the partition, or the range of partitions, as `ml-assets launch` takes it; empty without partitions."""
    if PARTITION in run.tags:
        return run.tags[PARTITION]
    bounds = [run.tags[tag] for tag in (RANGE_START, RANGE_END) if tag in run.tags]
    return "..".join(dict.fromkeys(bounds))


def declared_tables(defs: dg.Definitions) -> DeclaredTables:
    """Return all tables that `defs` declare."""
    found = [
        metadata[DECLARED]
        for asset in defs.assets or ()
        if isinstance(asset, dg.AssetsDefinition)
        for metadata in asset.metadata_by_key.values()
        if DECLARED in metadata
    ]
    return DeclaredTables(DeclaredTable.from_facts(one.data) for one in found)


def is_table(key: dg.AssetKey) -> bool:
    """True if the asset is a table of the lake: a dataset, a feature table, or predictions of a model."""
    return len(key.path) == 2 and (key.path[0] in ("datasets", "features") or key.path[1] == PREDICTIONS)

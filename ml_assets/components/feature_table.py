"""`FeatureTable`: a table computed from other tables by a plain polars function, and its newest rows for requests.

Not here: the rows that are stored online (`tables.online`), the store (`resources.online`).
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

import dagster as dg

from ml_assets.components.assets.table import (
    Reported,
    RunRows,
    TableRun,
    ranged_asset,
    require_all,
    table_asset,
)
from ml_assets.components.base import (
    SpecComponent,
    coarser_mapping,
    condition_named,
    lookback_mapping,
)
from ml_assets.components.checks.leakage import leakage_check
from ml_assets.components.metadata import (
    INPUT_CADENCES,
    LABELS,
    NAMED_COLUMNS,
    PARTITION_DATE,
    PREDICTED_AT,
    SENSITIVE,
)
from ml_assets.components.scaffold.scaffolders import FeatureTableScaffolder
from ml_assets.components.specs import FeatureTableSpec, InputSection, OnlineSection
from ml_assets.dagster_host.steps import log_materializations
from ml_assets.data.tables.cadence import Cadence, fit_of
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.derive import in_pieces, plan
from ml_assets.data.tables.online import fill_online
from ml_assets.data.tables.publish.workers import FeatureTask, features_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import TableSpec
from ml_assets.foundation.code.code_version import code_version
from resources.platform import Platform


class InputMisdeclared(Exception):
    """A feature table reads a table that is not declared, or partitions of a table that has none."""


@dg.scaffold_with(FeatureTableScaffolder)
class FeatureTable(SpecComponent):
    """Features as known at prediction time, built from validated partitions only."""

    spec_type = FeatureTableSpec
    spec: FeatureTableSpec

    @property
    def table(self) -> TableSpec:
        """The table, as it is published."""
        reads = {
            section.table: None if section.lookback == "all" else section.lookback
            for section in self.spec.inputs
        }
        return self.spec.table("features", code_version(self.spec.function), reads)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the asset of the table with its checks, and the asset of its online rows if they are declared."""
        spec = self.spec
        table = self.table

        @contextmanager
        def build(run: TableRun) -> Iterator[RunRows]:
            reader = run.reader
            for one in filter(None, (run.tables.find(section.table) for section in spec.inputs)):
                if one.deprecated:
                    run.context.log.warning(f"{one.table} is deprecated: {one.deprecated}")
            possible = plan(reader, run.platform.ledger, run.tables, run.inputs, run.keys, table.cadence)
            most_bytes = run.platform.settings.chunk_mib * 2**20 / 2
            pieces = in_pieces(reader, run.inputs, possible.ranges, most_bytes)
            task = FeatureTask(
                platform=run.platform,
                reader=reader,
                spec=table,
                inputs=tuple(run.inputs),
                function=spec.function,
                partition_date=spec.partition_date,
            )
            with closing(features_of(task, pieces)) as made:
                yield RunRows(incoming=made, possible=possible)

        deps = [_dependency(section, spec.cadence) for section in spec.inputs]
        facts = {
            LABELS: list(spec.labels),
            NAMED_COLUMNS: spec.input_columns,
            PARTITION_DATE: spec.partition_date,
            PREDICTED_AT: spec.predicted_at,
            INPUT_CADENCES: {one.table: one.cadence for one in spec.inputs if one.cadence is not None},
        }
        facts |= {SENSITIVE: [name for name in spec.contract.names if spec.contract.hides(name)]}
        asset = table_asset(
            spec, table, build, kind="polars", deps=deps, inputs_of=partial(_input_tables, spec), facts=facts
        )
        checks = [leakage_check(spec, table)] if spec.leakage_check == "weekly" else []
        assets = [asset] if spec.online is None else [asset, online_asset(spec, spec.online)]
        return dg.Definitions(assets=assets, asset_checks=checks)


def _key(section: InputSection) -> dg.AssetKey:
    return dg.AssetKey(section.table.split("/"))


def _dependency(section: InputSection, own: Cadence) -> dg.AssetDep:
    if section.lookback == "all":
        return dg.AssetDep(_key(section))
    read = section.cadence or own.kind
    if fit_of(own.kind, read) == "coarser":
        return dg.AssetDep(_key(section), partition_mapping=coarser_mapping(own.kind, read, section.lookback))
    return dg.AssetDep(_key(section), partition_mapping=lookback_mapping(section.lookback))


def _input_tables(spec: FeatureTableSpec, tables: DeclaredTables) -> list[InputTable]:
    return [_input_table(tables, section, spec) for section in spec.inputs]


def _input_table(tables: DeclaredTables, section: InputSection, spec: FeatureTableSpec) -> InputTable:
    declared = tables.find(section.table)
    if declared is None or (section.lookback != "all" and declared.cadence.kind == "none"):
        raise InputMisdeclared(
            f"`inputs` names {section.table}, which is not declared or has no partitions: check the name, or "
            f"write `lookback: all` for a table without partitions"
        )
    lookback = 0 if section.lookback == "all" else section.lookback
    return InputTable(
        table=section.table,
        cadence=declared.cadence,
        lookback=lookback,
        read_by=spec.cadence,
        days_begin_in=spec.contract.event_time_zone,
    )


ONLINE = "online"
"""Last part of the asset's key."""


def is_online(key: dg.AssetKey) -> bool:
    """True if the asset fills the online store."""
    return len(key.path) == 3 and key.path[0] == "features" and key.path[2] == ONLINE


def online_asset(spec: FeatureTableSpec, online: OnlineSection) -> dg.AssetsDefinition:
    """Return the asset that stores the newest rows of the feature table of `spec`."""
    table, ttl = dg.AssetKey(["features", spec.name]), "never expires"
    if online.ttl_hours is not None:
        ttl = f"expires {online.ttl_hours:g} h after {spec.predicted_at}"

    return ranged_asset(
        dg.AssetKey([*table.path, ONLINE]),
        partial(_fill, spec),
        spec,
        condition_named(online.automation_condition),
        deps=[dg.AssetDep(table, partition_mapping=lookback_mapping(0))],
        group_name=spec.group_name,
        description=f"Newest row of each {', '.join(online.entity)} in the online store; it {ttl}. "
        f"Read one: `ml-assets online get {spec.name} {' '.join(f'{name}=…' for name in online.entity)}`.",
        kinds={"online"},
    )


def _fill(
    spec: FeatureTableSpec, context: dg.AssetExecutionContext, platform: Platform, tables: DeclaredTables
) -> Iterator[Reported]:
    """Store the rows of the run's partitions that may be used; raise for the others when these are stored."""
    reader = TableReader.at(platform.lake, "main")
    inputs = [InputTable(table=f"features/{spec.name}", cadence=spec.cadence)]
    possible = plan(reader, platform.ledger, tables, inputs, context.partition_keys, spec.cadence)
    keys = [key for one in possible.ranges for key in one]
    if keys:
        filled = fill_online(platform.online, spec.online_table, reader, keys)
        facts = {
            "rows": filled.rows,
            "newest rows": filled.sent,
            "stored": filled.written,
            "rows without entity": filled.nameless,
            "store": platform.online.place,
            "commit": reader.commit_id,
        }
        log_materializations(
            context,
            [
                # Facts of the whole run are on its last partition, which the page shows.
                dg.AssetMaterialization(
                    context.asset_key, partition=key, metadata=facts if key == keys[-1] else {}
                )
                for key in keys
            ],
        )
    require_all(context.asset_key.to_user_string(), possible)
    yield from ()  # a returned value would be a second materialization of each partition

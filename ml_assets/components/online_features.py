"""Asset `features/<name>/online`: the newest row of each entity of a feature table, in the online store.

Not here: the rows that are stored (`tables.online_fill`), the store (`resources.online`).
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from ml_assets.components.conditions import condition_named
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.partitions import lookback_mapping, partitions_definition
from ml_assets.components.specs import FeatureTableSpec, OnlineSection
from ml_assets.dagster_host.step_events import log_materializations, log_output
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.derive import plan
from ml_assets.data.tables.online_fill import fill_online
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.refusal import InputsRefused
from resources.platform import Platform

ONLINE = "online"
"""Last part of the asset's key."""


def is_online(key: dg.AssetKey) -> bool:
    """True if the asset fills the online store."""
    return len(key.path) == 3 and key.path[0] == "features" and key.path[2] == ONLINE


def online_asset(spec: FeatureTableSpec, online: OnlineSection) -> dg.AssetsDefinition:
    """Return the asset that stores the newest rows of the feature table of `spec`."""
    table = dg.AssetKey(["features", spec.name])
    ttl = (
        "never expires"
        if online.ttl_hours is None
        else f"expires {online.ttl_hours:g} h after {spec.predicted_at}"
    )

    @dg.asset(
        key=dg.AssetKey([*table.path, ONLINE]),
        deps=[dg.AssetDep(table, partition_mapping=lookback_mapping(0))],
        partitions_def=partitions_definition(spec.partitions),
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        group_name=spec.group_name,
        description=f"Newest row of each {', '.join(online.entity)} in the online store; it {ttl}. "
        f"Read one: `ml-assets online get {spec.name} {' '.join(f'{name}=…' for name in online.entity)}`.",
        owners=list(spec.owners) or None,
        kinds={"online"},
        automation_condition=condition_named(online.automation_condition),
        retry_policy=RETRY_TRANSIENT,
    )
    def newest_rows(
        context: dg.AssetExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> Iterator[Any]:
        with final_unless_transient():
            _fill(context, spec, platform, tables)
            log_output(context)
        yield from ()

    return newest_rows


def _fill(
    context: dg.AssetExecutionContext, spec: FeatureTableSpec, platform: Platform, tables: DeclaredTables
) -> None:
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
    if possible.refused:
        name = context.asset_key.to_user_string()
        refused = {f"{name} {key}": why for key, why in possible.refused.items()}
        raise InputsRefused(name, refused, possible.missing)

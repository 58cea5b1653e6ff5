"""Asset of a published table, for datasets and feature tables: its declaration and its checks.

Not here: the rows (dataset, feature_table), the publish (`ml_assets.data.tables.publish`), its report (`table_report`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from ml_assets.components.base import freshness_policy
from ml_assets.components.columns import COLUMN_SCHEMA, DAYS_BEGIN_IN, NAMED_COLUMNS
from ml_assets.components.conditions import condition_named
from ml_assets.components.declared_metadata import DECLARED
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.pages import (
    column_schema,
)
from ml_assets.components.partitions import partitions_definition
from ml_assets.components.specs import TableSpecSection
from ml_assets.components.table_report import CONTRACT, DRIFT, VOLUME, WARNINGS, Reported
from ml_assets.components.tags import DEPRECATED
from ml_assets.dagster_host.step_events import log_output
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.data.tables.spec import TableSpec
from ml_assets.data.validation.drift_rule import DriftRule
from resources.platform import Platform

PublishTable = Callable[[dg.AssetExecutionContext, Platform, DeclaredTables], Iterator[Reported]]


def table_spec(
    kind: str, spec: TableSpecSection, version: str, inputs: Mapping[str, int | None] | None = None
) -> TableSpec:
    """Return the publishing specification of a declared table; `version` is the version of its code or source."""
    return TableSpec(
        kind=kind,
        name=spec.name,
        contract=spec.contract,
        cadence=spec.cadence,
        volume=spec.volume,
        drift=spec.drift,
        quarantine_limit=spec.quarantine_limit,
        retain=spec.retain,
        deprecated=spec.deprecated,
        code_version=version,
        inputs=inputs or {},
    )


def table_asset(
    section: TableSpecSection,
    table: TableSpec,
    deps: Sequence[dg.AssetDep],
    kind: str,
    publish_table: PublishTable,
    facts: Mapping[str, Any] | None = None,
) -> dg.AssetsDefinition:
    """Return the asset of a published table, with `facts` among its metadata.

    `publish_table` yields check results and logs materializations. It raises if a partition is missing.
    """
    key = dg.AssetKey([table.kind, table.name])
    read = {dep.asset_key for dep in deps}
    looked_up = [dg.AssetKey(one.split("/")) for one in section.referred_columns]
    named = {
        name: {**section.referred_columns.get(name, {}), **own.get(name, {})}
        for own in [(facts or {}).get(NAMED_COLUMNS, {})]
        for name in [*section.referred_columns, *own]
    }

    @dg.asset(
        key=key,
        deps=[*deps, *(dg.AssetDep(one) for one in looked_up if one not in read)],
        partitions_def=partitions_definition(section.partitions),
        # A range is one run: validated as one frame and merged once, with one event per day.
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        check_specs=check_specs(key, section.drift),
        group_name=section.group_name,
        description=_description(section),
        tags={DEPRECATED: ""} if section.deprecated else None,
        owners=list(section.owners) or None,
        kinds={kind, "parquet"},
        code_version=table.code_version,
        metadata={
            COLUMN_SCHEMA: column_schema(section.contract),
            "lake/table": table.table,
            DECLARED: dg.MetadataValue.json(DeclaredTable.of(table).to_facts()),
            **_days_begin(section),
            **(facts or {}),
            NAMED_COLUMNS: named,
        },
        automation_condition=condition_named(section.automation_condition),
        freshness_policy=freshness_policy(section.freshness),
        retry_policy=RETRY_TRANSIENT,
    )
    def published(
        context: dg.AssetExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> Iterator[Any]:
        with final_unless_transient():
            yield from publish_table(context, platform, tables)
            log_output(context)

    return published


def _description(section: TableSpecSection) -> str | None:
    if not section.deprecated:
        return section.description or None
    return f"**Deprecated: {section.deprecated}**\n\n{section.description}".rstrip()


def _days_begin(section: TableSpecSection) -> dict[str, str]:
    """Return the zone of the table's days as metadata; empty if its event time is a date or missing.

    Hours are hours of UTC, whatever the zone by which their numbers of rows are compared.
    """
    contract, event_time = section.contract, section.contract.event_time
    if event_time is None or contract.by_name[event_time].dtype != "datetime":
        return {}
    return {DAYS_BEGIN_IN: "UTC" if section.cadence.kind == "hourly" else contract.event_time_zone}


def check_specs(key: dg.AssetKey, drift: DriftRule | None = None) -> list[dg.AssetCheckSpec]:
    """Return the checks of every table, and the check of its drift if it is declared.

    Only findings that keep a partition from main fail a blocking check. Automation waits for blocking checks, and a
    warning is no reason to wait.
    """
    return [
        dg.AssetCheckSpec(
            CONTRACT,
            asset=key,
            blocking=True,
            description="Columns, types, keys, ranges, categories and event times keep the contract.",
        ),
        dg.AssetCheckSpec(
            VOLUME, asset=key, blocking=True, description="Number of rows, compared with earlier partitions."
        ),
        dg.AssetCheckSpec(
            WARNINGS, asset=key, description="Findings that do not keep a partition from main."
        ),
        *(
            []
            if drift is None
            else [
                dg.AssetCheckSpec(
                    DRIFT,
                    asset=key,
                    blocking=drift.severity == "error",
                    description="Distributions of the columns, compared with those of earlier partitions.",
                )
            ]
        ),
    ]

"""Base of the components: a strict spec from YAML, and the asset of a published table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Self

import dagster as dg
from pydantic import BaseModel

from ml_assets.code.code_version import code_version
from ml_assets.components.columns import COLUMN_SCHEMA, DAYS_BEGIN_IN
from ml_assets.components.conditions import condition_named
from ml_assets.components.declared_metadata import DECLARED
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.many_events import log_output
from ml_assets.components.pages import column_schema
from ml_assets.components.partitions import partitions_definition
from ml_assets.components.publishing import check_specs
from ml_assets.components.specs import FreshnessSection, TableSpecSection
from ml_assets.sections import Section
from ml_assets.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.tables.spec import TableSpec
from ml_assets.validation.contract import Contract
from resources.platform import Platform

PublishTable = Callable[[dg.AssetExecutionContext, Platform, DeclaredTables], Iterator[dg.AssetCheckResult]]


class SpecComponent(dg.Component):
    """Component whose attributes are one strict spec.

    Not `Resolvable`, because that would turn the spec's fields into templates, which accept wrong words.
    """

    spec_type: ClassVar[type[Section]]
    produces: ClassVar[tuple[str, ...]] = ("asset", "asset_check")

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description that `dg list components` shows."""
        return dg.ComponentTypeSpec(
            description=cls.__doc__, owners=["team:ml-platform"], tags=["ml"], produces=list(cls.produces)
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the pydantic model of the YAML attributes."""
        return cls.spec_type

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component for validated attributes."""
        return cls(attributes)


def table_spec(
    kind: str, spec: TableSpecSection, function: str, inputs: Mapping[str, int | None] | None = None
) -> TableSpec:
    """Return the publishing specification of a declared table; `function` is the import path of its code."""
    return TableSpec(
        kind=kind,
        name=spec.name,
        contract=spec.contract,
        cadence=spec.cadence,
        volume=spec.volume,
        code_version=code_version(function),
        inputs=inputs or {},
    )


def table_asset(
    section: TableSpecSection,
    table: TableSpec,
    deps: Sequence[dg.AssetDep],
    kind: str,
    publish: PublishTable,
    facts: Mapping[str, Any] | None = None,
) -> dg.AssetsDefinition:
    """Return the asset of a published table, with `facts` among its metadata.

    `publish` yields check results and logs materializations. It raises if a partition is missing.
    """
    key = dg.AssetKey([table.kind, table.name])

    @dg.asset(
        key=key,
        deps=deps,
        partitions_def=partitions_definition(section.partitions),
        # A range is one run: validated as one frame and merged once, with one event per day.
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        check_specs=check_specs(key),
        group_name=section.group_name,
        description=section.description or None,
        owners=list(section.owners) or None,
        kinds={kind, "parquet"},
        code_version=table.code_version,
        metadata={
            COLUMN_SCHEMA: column_schema(section.contract),
            "lake/table": table.table,
            DECLARED: dg.MetadataValue.json(DeclaredTable.of(table).to_facts()),
            **_days_begin(section.contract),
            **(facts or {}),
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
            yield from publish(context, platform, tables)
            log_output(context)

    return published


def _days_begin(contract: Contract) -> dict[str, str]:
    """Return the zone of the table's days as metadata; empty if its event time is a date or missing."""
    event_time = contract.event_time
    if event_time is None or contract.by_name[event_time].dtype != "datetime":
        return {}
    return {DAYS_BEGIN_IN: contract.event_time_zone}


def freshness_policy(section: FreshnessSection | None) -> dg.FreshnessPolicy | None:
    """Return Dagster's policy for a section; None without a section."""
    if section is None:
        return None
    warn = section.warn_after_hours
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=section.fail_after_hours),
        warn_window=timedelta(hours=warn) if warn is not None else None,
    )

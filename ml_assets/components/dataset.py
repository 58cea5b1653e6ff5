"""`Dataset`: a table that comes from a source, by write–audit–publish."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

import dagster as dg

from ml_assets.components.base import SpecComponent
from ml_assets.components.scaffolders import DatasetScaffolder
from ml_assets.components.sensors import new_data_sensor, recheck_facts
from ml_assets.components.specs import DatasetSpec
from ml_assets.components.table_asset import table_asset, table_spec
from ml_assets.components.table_report import Reported, publish_and_report, runs_of_retries
from ml_assets.data.sources.kinds import open_source
from ml_assets.data.sources.reading import read_partitions
from ml_assets.data.tables.cadence import UNPARTITIONED
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.landing import MAIN
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.resumed import published_by
from ml_assets.data.tables.spec import Incoming, TableSpec
from resources.platform import Platform


@dg.scaffold_with(DatasetScaffolder)
class Dataset(SpecComponent):
    """A dated table ingested from a source, validated on a branch, merged only if it passed."""

    spec_type = DatasetSpec
    produces = ("asset", "asset_check", "sensor")
    spec: DatasetSpec

    @property
    def table(self) -> TableSpec:
        """The table, as it is published."""
        table = table_spec("datasets", self.spec, self.spec.source.code_version)
        return replace(table, is_known_at_ingestion=self.spec.known_at == "ingestion")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return one asset with its checks, and a sensor if the source is watched."""
        spec = self.spec
        table = self.table

        def ingest(
            context: dg.AssetExecutionContext, platform: Platform, tables: DeclaredTables
        ) -> Iterator[Reported]:
            keys = context.partition_keys if spec.partitions else [UNPARTITIONED]
            reader = TableReader.at(platform.lake, MAIN)
            resumed = published_by(runs_of_retries(context), reader, platform.ledger, table, keys)
            with closing(open_source(spec.source, spec.source_table, platform)) as source:
                incoming = read_partitions(
                    source, table.cadence, [key for key in keys if key not in resumed], spec.require_closed
                )
                incoming = _noting_older_marks(context, reader, table.table, incoming)
                yield from publish_and_report(
                    context,
                    platform,
                    tables,
                    table,
                    incoming,
                    total=len(keys),
                    resumed=resumed,
                    source_facts=lambda: {**source.facts(), **recheck_facts(spec, source, platform)},
                )

        facts = {"source": spec.source.kind} | ({"known at": spec.known_at} if spec.known_at else {})
        asset = table_asset(spec, table, deps=[], kind="table", publish_table=ingest, facts=facts)
        sensors = [new_data_sensor(spec, asset.key)] if spec.source.watch else []
        return dg.Definitions(assets=[asset], sensors=sensors)


def _noting_older_marks(
    context: dg.AssetExecutionContext, reader: TableReader, table: str, incoming: Iterable[Incoming]
) -> Iterator[Incoming]:
    """Yield `incoming` unchanged; log a warning for a partition whose watermark is older than the one on main."""
    for one in incoming:
        if one.watermark is not None and one.key in reader.digests(table):
            readable, _ = reader.checked_manifests(table, [one.key])
            before = readable[one.key].watermark if one.key in readable else None
            if before is not None and one.watermark < before:
                context.log.warning(
                    f"{table} {one.key}: the newest change at the source is of {one.watermark.isoformat()}, and main "
                    f"has one of {before.isoformat()}: rows were removed or restored there, or its clock was set back. "
                    "The rows of today count. If they are wrong, correct the source and materialize the partition again"
                )
        yield one

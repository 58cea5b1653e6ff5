"""`Dataset`: a table that comes from a source, by write–audit–publish."""

from collections.abc import Callable, Iterator

import dagster as dg
import polars as pl

from ml_assets.components.base import SpecComponent
from ml_assets.components.scaffolders import DatasetScaffolder
from ml_assets.components.sensors import new_data_sensor
from ml_assets.components.specs import DatasetSpec
from ml_assets.components.table_asset import publish_and_report, table_asset, table_spec
from ml_assets.tables.cadence import UNPARTITIONED, Cadence
from ml_assets.tables.declared import DeclaredTables
from ml_assets.tables.imports import resolve_function
from ml_assets.tables.spec import Incoming, SourceFailed
from ml_assets.tables.user_code import FeatureFunctionError, answering, place_of
from resources.platform import Platform


@dg.scaffold_with(DatasetScaffolder)
class Dataset(SpecComponent):
    """A dated table ingested from a source function, validated on a branch, merged only if it passed."""

    spec_type = DatasetSpec
    produces = ("asset", "asset_check", "sensor")
    spec: DatasetSpec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return one asset with its checks, and a sensor if the source is watched."""
        spec = self.spec
        read = resolve_function(spec.source.function)
        table = table_spec("datasets", spec, spec.source.function)

        def ingest(
            context: dg.AssetExecutionContext, platform: Platform, _: DeclaredTables
        ) -> Iterator[dg.AssetCheckResult]:
            keys = context.partition_keys if spec.partitions else [UNPARTITIONED]
            incoming = (read_partition(read, table.cadence, key) for key in keys)
            return publish_and_report(context, platform, table, incoming)

        asset = table_asset(spec, table, deps=[], kind="table", publish_table=ingest)
        sensors = [new_data_sensor(spec, asset.key)] if spec.source.watch else []
        return dg.Definitions(assets=[asset], sensors=sensors)


def read_partition(read: Callable[..., pl.DataFrame], cadence: Cadence, key: str) -> Incoming:
    """Call the source for one partition. An error or a wrong result becomes a failure of that partition alone."""
    first_day, _ = cadence.bounds(key)
    ask = answering(read)
    try:
        return Incoming(key=key, data=ask() if cadence.kind == "none" else ask(first_day))
    except FeatureFunctionError as error:
        failure = SourceFailed(str(error))
        failure.__cause__ = error.__cause__
    except Exception as error:  # unreachable, but perhaps not at the next try
        failure = SourceFailed(f"{place_of(read, error)}: the source raised {type(error).__name__}: {error}")
        failure.__cause__ = error
    return Incoming(key=key, data=failure)

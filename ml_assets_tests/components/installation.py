"""Everything of one installation in one folder: lake, ledger, MLflow and Dagster's own storage, all real.

A test says what to materialize; nothing here knows what should come of it.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets.assembly import build_defs
from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.components.metadata import DATA_VERSION, RANGE_END, RANGE_START
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.components import readings_pipeline
from resources.platform import Platform
from resources.settings import Settings

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def component(of_type: type[SpecComponent], attributes: dict[str, Any], **changes: Any) -> SpecComponent:
    """Return the component of a `defs.yaml` with these attributes, some top-level ones changed."""
    return of_type(of_type.spec_type.model_validate(attributes | changes))


def readings_components(
    dataset: dict[str, Any] | None = None,
    features: dict[str, Any] | None = None,
    pipeline: dict[str, Any] | None = None,
) -> list[SpecComponent]:
    """Return the three components of the readings, with changes of their top-level attributes."""
    return [
        component(Dataset, readings_pipeline.DATASET, **(dataset or {})),
        component(FeatureTable, readings_pipeline.FEATURE_TABLE, **(features or {})),
        component(TrainingPipeline, readings_pipeline.PIPELINE, **(pipeline or {})),
    ]


def approved_readings() -> list[SpecComponent]:
    """Return the components of the readings with one gate and approvals: each training is blessed."""
    evaluation: dict[str, Any] = readings_pipeline.PIPELINE["evaluation"]
    return readings_components(
        pipeline={
            "evaluation": evaluation | {"gates": evaluation["gates"][:1]},
            "release": {"approval": {}},
            "training": readings_pipeline.PIPELINE["training"] | {"workers": 1},
        }
    )


PLANTED = "planted-credential"
"""A secret in the settings of every installation; nothing that a run writes may hold it."""


class Installation:
    """One home, and definitions over it."""

    def __init__(
        self,
        home: Path,
        components: Sequence[SpecComponent] | None = None,
        settings: Settings | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.settings = settings or Settings.model_validate(
            {
                "home": home,
                "author": "ada",
                "ui_url": f"http://ada:{PLANTED}@ui.test",
                "lake_access_key_id": PLANTED,
                "lake_secret_access_key": PLANTED,
                "kubernetes": {"env": {"TOKEN": PLANTED}},
            }
        )
        self.platform = Platform(self.settings)
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursors: dict[str, str | None] = {}
        """Sensor → cursor of its last tick."""
        self._components = readings_components() if components is None else components

    @cached_property
    def defs(self) -> dg.Definitions:
        """The code location over these components."""
        return build_defs(self.settings, components=self._components, platform=self.platform)

    def declared_as(self, components: Sequence[SpecComponent]) -> "Installation":
        """The same home after somebody edited the files of the pipelines."""
        other = object.__new__(Installation)
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("defs", None)
        other._components = components
        return other

    def run(
        self, *assets: str, partition: str | None = None, last: str | None = None, **tags: str
    ) -> ExecuteInProcessResult:
        """Materialize exactly `assets` (`a/b`), for one partition or for `partition`..`last`, in one run."""
        if last is not None:
            tags |= {RANGE_START: partition or "", RANGE_END: last}
        return self.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            run_config=QUIET,
            instance=self.instance,
            asset_selection=[key_of(name) for name in assets],
            partition_key=None if last is not None else partition,
            tags=tags,
            raise_on_error=False,
        )

    def run_job(self, partition: str) -> ExecuteInProcessResult:
        """Run the job of the model, as its schedule does."""
        return self.defs.resolve_job_def(f"train_{readings_pipeline.MODEL}").execute_in_process(
            run_config=QUIET, instance=self.instance, partition_key=partition, raise_on_error=False
        )

    def train(self, partition: str) -> ExecuteInProcessResult:
        """Materialize the model's execution set."""
        return self.run(*STAGES, partition=partition)

    def trained(self, partition: str) -> dict[str, dict[str, Any]]:
        """Materialize the model's execution set, which must succeed; see `facts_of`."""
        return facts_of(self.train(partition), partition)

    def with_tables(self, count: int) -> "Installation":
        """Readings and features for the first `count` days that have features at all."""
        first, *_, last = readings_pipeline.days(readings_pipeline.WINDOW + count)
        for table in (readings_pipeline.READINGS, readings_pipeline.FEATURES):
            result = self.run(table, partition=first, last=last)
            assert result.success, failure_of(result)
        return self

    @property
    def main(self) -> TableReader:
        """The tables as main holds them now."""
        return TableReader.at(self.platform.lake, "main")


STAGES = tuple(
    f"{readings_pipeline.MODEL}/{stage}"
    for stage in ("training_set", "checkpoint", "evaluation", "registered_model")
)


def mapped_inputs(defs: dg.Definitions, table: str, key: str) -> list[str]:
    """Return the partitions of the only input of `table` that Dagster shows for its partition `key`, sorted."""
    graph, asset = defs.resolve_asset_graph(), key_of(table)
    [read] = graph.get(asset).parent_keys
    own, other = graph.get(asset).partitions_def, graph.get(read).partitions_def
    assert own is not None
    assert other is not None
    return mapped_keys(graph.get_partition_mapping(asset, read), own, other, key)


def mapped_keys(
    mapping: dg.PartitionMapping, own: dg.PartitionsDefinition, other: dg.PartitionsDefinition, key: str
) -> list[str]:
    """Return the partitions of `other` to which `mapping` maps partition `key` of `own`, sorted."""
    mapped = mapping.get_upstream_mapped_partitions_result_for_partitions(
        own.empty_subset().with_partition_keys([key]), own, other
    )
    return sorted(mapped.partitions_subset.get_partition_keys())


def built(
    installation: Installation, table: str, first: str, last: str | None = None
) -> dict[str | None, str]:
    """Materialize partitions of `table`, all of which must succeed; return partition → version."""
    result = installation.run(table, partition=first, last=last)
    assert result.success, failure_of(result)
    return versions(result, table)


def key_of(name: str) -> dg.AssetKey:
    """`a/b` as a key."""
    return dg.AssetKey(name.split("/"))


def failure_of(result: ExecuteInProcessResult) -> str:
    """Return the error of the run's only failed step."""
    (event,) = result.get_step_failure_events()
    failure = event.step_failure_data.user_failure_data
    assert failure is not None, event.step_failure_data.error
    return failure.description or ""


def materialized(result: ExecuteInProcessResult, name: str) -> dict[str | None, dg.AssetMaterialization]:
    """Partition → its materialization in this run."""
    return {
        event.partition: event.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == key_of(name)
    }


def facts_of(result: ExecuteInProcessResult, partition: str) -> dict[str, dict[str, Any]]:
    """Stage → what stands on its page for `partition`, as plain values; absent where it was not materialized. The run
    must have succeeded."""
    assert result.success, failure_of(result)
    return {
        name: {fact: value.value for fact, value in found[partition].metadata.items()}
        for name in STAGES
        if partition in (found := materialized(result, name))
    }


def versions(result: ExecuteInProcessResult, name: str) -> dict[str | None, str]:
    """Partition → the data version its materialization carries."""
    return {
        partition: (one.tags or {})[DATA_VERSION] for partition, one in materialized(result, name).items()
    }


def failure_metadata(result: ExecuteInProcessResult) -> dict[str, dg.MetadataValue]:
    """Return the metadata that the run's only failed step passes to sensors."""
    (event,) = result.get_step_failure_events()
    failure = event.step_failure_data.user_failure_data
    return dict(failure.metadata) if failure else {}

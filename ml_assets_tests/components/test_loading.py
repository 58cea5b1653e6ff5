"""The code location: cheap to load, valid as a whole, and the graph of assets it has always been."""

import cProfile
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster.components.core.component_tree_state import PLUGIN_COMPONENT_TYPES_JSON_METADATA_KEY
from syrupy.assertion import SnapshotAssertion

from ml_assets.assembly import build_defs
from ml_assets.components.behind import declared_as
from ml_assets.components.declarations import DeclarationRefused, require_consistent
from ml_assets.components.training_pipeline import STAGES
from ml_assets.dagster_host.defs_folder import PipelineTree
from ml_assets.definitions import load, loading
from ml_assets_tests.components.scaffolded_project import project_of_shops, scaffold
from resources.settings import Settings

HEAVY = (
    "torch",
    "mlflow",
    "pandas",
    "pandera",
    "kubernetes",
    "holidays",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "optuna",
    "sklearn",
)
INTEGRATIONS = ("dagster_aws", "dagster_k8s", "boto3")
"""Packages whose components Dagster imports for its page of components, by default."""
_LOAD = """
import json, sys
from ml_assets.definitions import defs
loaded = defs()
loaded.get_repository_def().load_all_definitions()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    """Everything this project declares."""
    return build_defs()


def test_loading_the_definitions_imports_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, check=True)
    imported = json.loads(done.stdout.splitlines()[-1])
    assert "dagster" in imported
    assert "varying BackfillPolicies" not in done.stderr
    assert [name for name in (*HEAVY, *INTEGRATIONS) if name in imported] == []


class Cycle:
    """Something that only garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_definitions_are_no_garbage_until_they_are_loaded_again() -> None:
    """To look through them for garbage takes a tenth of the time to load them."""
    with loading():
        loaded = Cycle()
    earlier = weakref.ref(loaded)
    del loaded
    gc.collect()
    assert earlier() is not None
    with loading(replaces=False):
        assert earlier() is not None
    with loading():
        assert earlier() is None
    assert gc.isenabled()


_PLAN = """
import json, sys
from ml_assets.cli import main
sys.argv = ["ml-assets", "plan", "store_demand", "2024-06-24"]
try:
    main()
finally:
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_a_plan_imports_no_library_that_only_a_run_needs(tmp_path: Path) -> None:
    """A plan with 100 pipelines took 80 s of CPU, and 15 s with ten: MLflow alone takes two."""
    variables = {**os.environ, "ML_ASSETS_HOME": str(tmp_path / "home"), "ML_ASSETS_AUTHOR": "ada"}
    done = subprocess.run([sys.executable, "-c", _PLAN], capture_output=True, text=True, env=variables)
    imported = json.loads(done.stdout.splitlines()[-1])
    assert "It would refuse" in done.stdout, done.stderr
    assert [name for name in HEAVY if name in imported] == []
    assert "structlog" not in imported, "a plan of a new partition opens Dagster's storage"


def test_dagster_loads_only_what_the_setting_names_and_the_tables_behind() -> None:
    """Pipelines that nobody built are noise in the first look at the pages."""
    loaded = load(Settings(), only=("store_demand",))
    keys = {key.to_user_string() for key in loaded.resolve_asset_graph().get_all_asset_keys()}
    tables = {declared_as(key) for key in keys if key.startswith(("datasets/", "features/"))}
    assert tables == {"datasets/sales", "features/sales_features"}
    assert {f"store_demand/{stage}" for stage in STAGES} <= keys
    assert not any(key.startswith("flight_") for key in keys)
    dg.Definitions.validate_loadable(loaded)


def test_a_name_that_is_not_declared_is_refused_with_the_setting() -> None:
    with pytest.raises(DeclarationRefused, match="ML_ASSETS_ONLY is store_demands: "):
        load(Settings(), only=("store_demands",))


def test_dagsters_page_of_components_lists_the_three(defs: dg.Definitions) -> None:
    (entry,) = entry_points(group="dagster_dg_cli.registry_modules", name="ml_assets")
    three = ["Dataset", "FeatureTable", "TrainingPipeline"]
    assert entry.load().__all__ == three
    packages: Any = defs.metadata[PLUGIN_COMPONENT_TYPES_JSON_METADATA_KEY].value
    shown = {package["name"]: [one["name"] for one in package["componentTypes"]] for package in packages}
    assert shown["ml_assets"] == [f"ml_assets.components.{name}" for name in three]


def test_all_definitions_are_valid_together(defs: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(defs)


def test_sensors_and_schedules_can_run_what_they_request(defs: dg.Definitions) -> None:
    repository = defs.get_repository_def()
    assert repository.has_sensor_def("build_missing_upstream")
    for schedule in repository.schedule_defs:
        assert repository.has_job(schedule.job_name)


def test_the_asset_graph_is_as_it_was(defs: dg.Definitions, snapshot: SnapshotAssertion) -> None:
    graph = defs.resolve_asset_graph()
    assert {key.to_user_string(): _facts(graph, key) for key in graph.toposorted_asset_keys} == snapshot


@pytest.fixture
def shops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty defs folder of a project of its own."""
    with project_of_shops(tmp_path, monkeypatch) as defs:
        yield defs


def _calls_to_load(shops: Path, pipelines: range) -> int:
    """Scaffold `pipelines`, load all of the folder, and return the number of function calls of the load."""
    for number in pipelines:
        scaffold(shops, f"shop_{number}")
    tree = PipelineTree.for_project(shops)
    profile = cProfile.Profile()
    with loading():
        profile.enable()
        require_consistent(tree.build_defs(), shops)
        profile.disable()
    return sum(one.callcount for one in profile.getstats())


def test_the_hundredth_pipeline_costs_no_more_than_the_second(shops: Path) -> None:
    """Each edge searched all files, and Dagster lists its tree for each component: 100 pipelines took 71 s."""
    _calls_to_load(shops, range(1))  # imports
    four, eight, twelve = (_calls_to_load(shops, range(first, first + 4)) for first in (1, 5, 9))
    # The first load of a file imports and parses its modules: all three load four new pipelines.
    assert (twelve - eight) - (eight - four) < 0.02 * (eight - four)


def _facts(graph: BaseAssetGraph, key: dg.AssetKey) -> dict[str, object]:
    """Return the facts on which people and other code rely; nothing that follows from code or installation."""
    node = graph.get(key)
    mappings = {
        parent.to_user_string(): repr(graph.get_partition_mapping(key, parent)) for parent in node.parent_keys
    }
    condition = node.automation_condition
    partitions = node.partitions_def
    return {
        "group": node.group_name,
        "kinds": sorted(node.kinds),
        "owners": sorted(node.owners),
        "partitions": None if partitions is None else _partitions(partitions),
        "depends on": dict(sorted(mappings.items())),
        "checks": sorted(
            f"{check.name}{' (blocking)' if graph.get(check).blocking else ''}" for check in node.check_keys
        ),
        "materialized with": sorted(each.to_user_string() for each in node.execution_set_asset_keys - {key}),
        "automation": condition.get_label() if condition else None,
        "backfill": repr(node.backfill_policy),
    }


def _partitions(partitions: dg.PartitionsDefinition) -> str:
    keys = partitions.get_partition_keys()
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition) and partitions.end is None:
        return f"{type(partitions).__name__} {keys[0]}.."  # its last key is yesterday
    return f"{type(partitions).__name__} {keys[0]}..{keys[-1]} ({len(keys)})"

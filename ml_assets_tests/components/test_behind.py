"""One pipeline alone: the same declarations, versions and graph as among all, and no fault of another pipeline."""

import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.behind import SingleComponents
from ml_assets.components.declarations import DeclarationRefused
from ml_assets.components.metadata import declared_tables
from ml_assets.context.errors import RunFailed
from ml_assets.context.launch import launch
from ml_assets.context.plan import missing_behind
from ml_assets.context.project import Project
from ml_assets.dagster_host.defs_folder import PipelineTree
from ml_assets.model.steps.identity import settings_digest
from ml_assets_tests.components.scaffolded_project import project_of_shops, scaffold
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project with all definitions loaded."""
    project = Project(Settings(home=tmp_path_factory.mktemp("every")))
    _ = project.defs
    return project


def _versions(defs: dg.Definitions) -> dict[str, tuple[object, ...]]:
    """Return asset → code version, partitions, inputs with their mappings, checks."""
    graph = defs.resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    return {
        node.key.to_user_string(): (
            graph.get(node.key).code_version,
            node.partitions_def,
            {key: graph.get_partition_mapping(node.key, key) for key in node.parent_keys},
            node.check_keys,
            node.automation_condition,
        )
        for node in nodes
    }


def test_each_pipeline_alone_is_as_it_is_among_all(every: Project, tmp_path: Path) -> None:
    """Compare the versions of code, by which partitions and trainings count as current, of each model and table."""
    versions, tables = _versions(every.defs), declared_tables(every.defs)
    for name, spec in every.declared.pipelines().items():
        project = Project(Settings(home=tmp_path))
        alone = project.defs_of(name)
        assert "defs" not in vars(project)
        found = _versions(alone)
        assert {key: versions[key] for key in found} == found
        assert f"{name}/checkpoint" in found
        own, table = declared_tables(alone), spec.features.table
        assert own.with_inputs(table) == tables.with_inputs(table)
        known = project.declared.tables_with(alone)
        assert [known.find(one.table) for one in tables.every()] == tables.every()
        assert project.declared.pipeline(name) == spec
        assert settings_digest(project.declared.pipeline(name)) == settings_digest(spec)
    for name, table in every.declared.tables().items():
        assert Project(Settings(home=tmp_path)).declared.table(name) == table


@pytest.fixture
def shops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with the pipelines `bikes` and `cars`."""
    with project_of_shops(tmp_path, monkeypatch) as defs:
        for name in ("bikes", "cars"):
            scaffold(defs, name)
        yield defs


def _single(defs: Path) -> SingleComponents:
    return SingleComponents(PipelineTree.for_project(defs))


def _change(file: Path, right: str, wrong: str) -> None:
    text = file.read_text()
    assert right in text
    file.write_bytes(text.replace(right, wrong).encode(errors="surrogateescape"))


_CHECK = """
import dagster as dg

@dg.asset_check(asset=dg.AssetKey(["datasets", "bikes"]), blocking=True)
def looked_at():
    return dg.AssetCheckResult(passed=False)
"""
_BREAK = [
    pytest.param("defs.yaml", "attributes:", "attributes: [", id="not YAML"),
    pytest.param("defs.yaml", "attributes:", "attributes: # [\x07", id="control character"),
    pytest.param("defs.yaml", "attributes:", "attributes: # [\udce9", id="Latin-1"),
    pytest.param("defs.yaml", "attributes:", "more: !!int [x]\nattributes:", id="tag"),
    pytest.param("defs.yaml", "attributes:", "more: {{ [env] }}\nattributes:", id="template without quotes"),
    pytest.param("defs.yaml", "  window:", "  windowe:", id="wrong key"),
    pytest.param("defs.yaml", "components.Dataset", "components.Datasett", id="no such component"),
    pytest.param("source.py", "import polars as pl", "import no_such_library as pl", id="import"),
    pytest.param("features.py", "def build(", "def build(((", id="syntax"),
]


@pytest.mark.parametrize(("file", "right", "wrong"), _BREAK)
def test_a_fault_of_another_pipeline_does_not_stop(shops: Path, file: str, right: str, wrong: str) -> None:
    _change(shops / "cars" / file, right, wrong)
    single = _single(shops)
    found = single.find(TrainingPipeline, "bikes")
    assert found is not None
    assert found.spec.features.table == "features/bikes"
    defs = single.definitions_of(["bikes"])
    assert defs is not None
    assets = [one for one in defs.assets or () if isinstance(one, dg.AssetsDefinition)]
    keys = {key.to_user_string() for one in assets for key in one.keys}
    assert {"datasets/bikes", "features/bikes", "bikes/checkpoint"} <= keys
    assert not [name for name in sys.modules if name.startswith("shops.defs.cars")]


@pytest.mark.parametrize(("file", "right", "wrong"), _BREAK)
def test_a_fault_behind_the_pipeline_is_refused(shops: Path, file: str, right: str, wrong: str) -> None:
    """A file that is not YAML declares nothing, so all files are read, and the load of all names it."""
    _change(shops / "cars" / file, right, wrong)
    single = _single(shops)
    if "[" in wrong:
        assert single.definitions_of(["cars"]) is None
        return
    with pytest.raises(DeclarationRefused, match=r"cars/defs.yaml:\d+ "):
        single.definitions_of(["cars"])


def test_tables_at_any_depth_come_along_and_others_do_not(shops: Path) -> None:
    _change(shops / "cars" / "defs.yaml", "table: datasets/cars", "table: datasets/bikes")
    defs = _single(shops).definitions_of(["cars/predictions"])
    assert defs is not None
    assert {one.table for one in declared_tables(defs).with_inputs("features/cars")} == {
        "features/cars",
        "datasets/bikes",
    }
    alone = _single(shops).definitions_of(["datasets/bikes"])
    assert alone is not None
    assert declared_tables(alone).find("datasets/cars") is None


def test_a_former_input_is_known_as_among_all(
    shops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored partition of `cars` was made from `bikes`. Its file does not name them any more."""
    monkeypatch.setattr("ml_assets.context.declared.ROOT", shops)
    settings, day = Settings(home=tmp_path / "home", author="ada"), "2024-01-01"
    prepare_home(settings)
    bikes, cars = (shops / name / "defs.yaml" for name in ("bikes", "cars"))
    _change(cars, "table: datasets/cars", "table: datasets/bikes")
    _change(shops / "cars" / "features.py", "datasets/cars", "datasets/bikes")
    for table in ("datasets/bikes", "features/cars"):
        launch(Project(settings), table, day)
    _change(bikes, "ge: 1, le: 1000", "ge: 99, le: 1000")
    with pytest.raises(RunFailed, match="size"):
        launch(Project(settings), "datasets/bikes", day)
    _change(bikes, "ge: 99, le: 1000", "ge: 1, le: 1000")
    _change(cars, "table: datasets/bikes", "table: datasets/cars")
    alone, every = Project(settings), Project(settings)
    _ = every.defs
    found = [missing_behind(project, "features/cars", day) for project in (alone, every)]
    assert found == [[("datasets/bikes", day)]] * 2
    assert "defs" not in vars(alone)


def test_an_input_that_no_file_declares_needs_all_definitions(shops: Path) -> None:
    """A Python file may define it; if none does, the load of all names the nearest table."""
    _change(shops / "cars" / "defs.yaml", "table: datasets/cars", "table: datasets/cras")
    assert _single(shops).definitions_of(["cars"]) is None
    assert _single(shops).definitions_of(["buses"]) is None
    assert _single(shops).find(Dataset, "cras") is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("checks.py", _CHECK),
        ("more/checks.py", _CHECK),
        ("more/defs.yaml", "type: dagster.DefsFolderComponent\n"),
        ("more/defs.yaml", '---\n"type":  dagster.DefinitionsComponent\nattributes: {path: checks.py}\n'),
        ("more/defs.yaml", "{attributes: {path: checks.py}, type: dagster.DefinitionsComponent}\n"),
        ("more/defs.yaml", " type: dagster.DefinitionsComponent\n attributes: {path: checks.py}\n"),
        ("more/defs.yaml", "type: !!str dagster.DefsFolderComponent\n"),
        ("more/defs.yml", "type: dagster.DefsFolderComponent\n"),
        ("more/component.yaml", "type: dagster.DefsFolderComponent\n"),
    ],
)
def test_a_check_from_elsewhere_needs_all_definitions(shops: Path, file: str, text: str) -> None:
    """A table that is launched alone would be built without the check."""
    (shops / "more").mkdir()
    (shops / file).write_text(text)
    assert _single(shops).definitions_of(["bikes"]) is None


def test_python_that_defines_nothing_is_no_reason_to_load_all(shops: Path) -> None:
    (shops / "words.py").write_text("WORDS = ('a', 'b')\n")
    (shops / "bikes" / "checks.py").write_text(_CHECK)  # Dagster imports no file beside a defs.yaml
    assert _single(shops).definitions_of(["bikes"]) is not None


def test_a_name_declared_twice_is_refused_with_both_files(shops: Path) -> None:
    _change(shops / "cars" / "defs.yaml", "name: cars # the table is datasets", "name: bikes # datasets")
    _change(shops / "cars" / "defs.yaml", "table: datasets/cars", "table: datasets/bikes")
    assert _single(shops).find(Dataset, "bikes") is None
    assert _single(shops).find(FeatureTable, "bikes") is not None
    with pytest.raises(DeclarationRefused, match="'datasets/bikes' is declared 2 times"):
        _single(shops).definitions_of(["bikes"])


@pytest.mark.parametrize("name", ["defs.yml", "component.yaml"])
def test_a_file_with_another_name_of_dagsters_declares_the_same(shops: Path, name: str) -> None:
    """The first name counts in a folder with several."""
    (shops / "cars" / "defs.yaml").rename(shops / "cars" / name)
    (shops / "bikes" / name).write_text("type: dagster.DefsFolderComponent\n")
    single = _single(shops)
    assert single.find(TrainingPipeline, "cars") is not None
    assert single.definitions_of(["cars", "bikes"]) is not None
    _change(shops / "cars" / name, "  window:", "  windowe:")
    with pytest.raises(DeclarationRefused, match=rf"cars/{name}:\d+ "):
        _single(shops).definitions_of(["cars"])


def test_a_folder_that_dagster_skips_declares_nothing(shops: Path) -> None:
    (shops / "cars").rename(shops / ".cars")
    assert _single(shops).find(TrainingPipeline, "cars") is None


def test_a_file_in_a_folder_above_decides_about_those_below(shops: Path) -> None:
    (shops / "defs.yaml").write_text("type: dagster.DefsFolderComponent\n")
    assert _single(shops).find(TrainingPipeline, "cars") is None

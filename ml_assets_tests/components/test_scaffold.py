"""Folders that `dg scaffold defs` writes load, pass the leakage test and the linter. `tour` trains one."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import click
import dagster as dg
import polars as pl
import pytest
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.components.declarations import require_consistent
from ml_assets.data.features.cut_and_rebuild import Alone, leak_test
from ml_assets.data.tables.user_code import building, resolve_function
from ml_assets_tests.components.installation import Installation, key_of

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    """A project with an empty defs folder."""
    with create_defs_folder_sandbox() as made:
        yield made


@contextmanager
def loaded(sandbox: DefsFolderSandbox) -> Iterator[list[SpecComponent]]:
    """The components of the sandbox, their modules importable here and in training's processes."""
    with sandbox.build_component_tree() as tree:
        require_consistent(tree.build_defs(), sandbox.defs_folder_path)
        yield list(tree.get_all_components(SpecComponent))


def spec_of(components: list[SpecComponent], of_type: type[SpecComponent]):
    """The specification of the only component of a type."""
    (found,) = [one for one in components if isinstance(one, of_type)]
    return found.spec


def test_scaffolded_features_pass_the_leakage_test(sandbox: DefsFolderSandbox) -> None:
    sandbox.scaffold_component(TrainingPipeline, "bike_trips")
    with loaded(sandbox) as components:
        dataset, features = spec_of(components, Dataset), spec_of(components, FeatureTable)
        read = resolve_function(dataset.source.function)
        days = [date(2024, 1, day) for day in range(1, 21)]
        (section,) = features.inputs
        assert isinstance(section.lookback, int)
        history = pl.concat(read(day) for day in days[-1 - section.lookback :])
        report = leak_test(
            building(resolve_function(features.function)),
            {"datasets/bike_trips": pl.concat(read(day) for day in days)},
            {section.table: section.known_at for section in features.inputs},
            date(2024, 1, 9),
            days[-1],
            primary_key=features.contract.primary_key,
            labels=features.labels,
            alone=[
                Alone(
                    key="2024-01-20",
                    first=days[-1],
                    last=days[-1],
                    inputs={section.table: history},
                )
            ],
            partition_date=features.partition_date,
        )
    assert report.ok, report.explain()
    assert report.rows_compared > 1000


def test_scaffolds_of_two_names_live_side_by_side(sandbox: DefsFolderSandbox) -> None:
    for name in ("bike_trips", "shop/visits"):
        sandbox.scaffold_component(TrainingPipeline, name)
    sandbox.scaffold_component(Dataset, "parcels")
    sandbox.scaffold_component(FeatureTable, "parcels_features")
    sandbox.scaffold_component(FeatureTable, "other", scaffold_params={"input": "datasets/parcels"})
    with loaded(sandbox) as components:
        defs = Installation(sandbox.project_root, components).defs
        dg.Definitions.validate_loadable(defs)
        graph = defs.resolve_asset_graph()
    assert {key_of("shop_visits/registered_model"), key_of("datasets/parcels")} <= graph.get_all_asset_keys()
    for reader in ("features/parcels_features", "features/other"):
        assert graph.get(key_of(reader)).parent_keys == {key_of("datasets/parcels")}


def test_the_commented_study_of_a_scaffold_can_be_declared(sandbox: DefsFolderSandbox) -> None:
    file = sandbox.scaffold_component(TrainingPipeline, "bike_trips") / "defs.yaml"
    hint, *section = re.findall(r"^  # (.*)$", file.read_text(), re.MULTILINE)
    assert hint.endswith("ml-assets launch bike_trips/hyperparameters")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("  # ")]
    file.write_text("\n".join([*lines, *(f"  {line}" for line in section), ""]))
    with loaded(sandbox) as components:
        tuning = spec_of(components, TrainingPipeline).tuning
    assert tuning is not None
    assert list(tuning.space.dimensions) == [
        "hyperparameters.dropout",
        "hyperparameters.width",
        "training.learning_rate",
        "training.weight_decay",
    ]


@pytest.mark.parametrize("component", [Dataset, FeatureTable, TrainingPipeline])
def test_scaffolded_modules_are_in_the_style_of_the_house(
    sandbox: DefsFolderSandbox, component: type[SpecComponent]
) -> None:
    folder = sandbox.scaffold_component(component, "bike_trips")
    for check in (["check"], ["format", "--check"]):
        ruff = [
            str(BIN / "ruff"),
            *check,
            "--no-cache",
            "--config",
            str(ROOT / "pyproject.toml"),
            str(folder),
        ]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_every_key_of_a_scaffolded_file_is_explained_where_it_first_stands(
    sandbox: DefsFolderSandbox,
) -> None:
    text = (sandbox.scaffold_component(TrainingPipeline, "bike_trips") / "defs.yaml").read_text()
    explained: dict[str, bool] = {}
    for line in text.splitlines():
        said, comment, _ = line.partition(" #")
        for key in re.findall(r"(?:^\s*(?:- )?|[{,]\s*)(\w+):", said):
            explained[key] = explained.get(key, False) or bool(comment)
    assert {key for key, is_explained in explained.items() if not is_explained} == {"type", "attributes"}


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        pytest.param("bike-trips", "yaml", "use 'bike_trips'", id="dash"),
        pytest.param("2trips", "yaml", "use 'my_2trips'", id="digit"),
        pytest.param("bike_trips", "python", "leave --format out", id="format"),
    ],
)
def test_what_cannot_be_scaffolded_is_refused_and_leaves_nothing(
    sandbox: DefsFolderSandbox, name: str, how, said: str
) -> None:
    with pytest.raises(click.ClickException) as refused:
        sandbox.scaffold_component(Dataset, name, scaffold_format=how)
    assert said in refused.value.message
    assert not (sandbox.defs_folder_path / name).exists()


def test_an_option_about_a_file_needs_the_file(sandbox: DefsFolderSandbox) -> None:
    """It was ignored, and a pipeline on synthetic data was written."""
    with pytest.raises(click.ClickException) as refused:
        sandbox.scaffold_component(
            TrainingPipeline, "visitors", scaffold_params={"label": "Visitors", "time_zone": "Europe/Berlin"}
        )
    assert refused.value.message.startswith("--label, --time-zone without a file")
    assert "add --from FILE.csv" in refused.value.message
    assert not (sandbox.defs_folder_path / "visitors").exists()

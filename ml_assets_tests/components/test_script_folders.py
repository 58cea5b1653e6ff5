"""Training scripts in the defs folder, in a project of their own: none of them runs when the definitions load."""

import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from pydantic import ValidationError

from ml_assets.dagster_host.defs_folder import PipelineTree
from ml_assets.foundation.code.code_version import SourceUnavailable, script_version
from ml_assets.model.steps.declared_functions import ModelSection
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.defs_sandbox import DECLARED

_SCRIPT = '''"""Trains."""
from ml_assets.model.training.script import attach

import net

training = attach()
training.finish(net.build(), steps=1, validation_loss=1.0)
'''
_NET = '"""A model."""\nimport no_such_library\nfrom layers.hidden import WIDTH\n\nbuild = no_such_library.build\n'
_PAGES = '''"""An asset that is no pipeline."""
import dagster as dg


@dg.asset
def page() -> None: ...
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a folder of a script, whose pipeline lies in a folder of its own below."""
    package = tmp_path / "plants"
    pipeline = package / "defs" / "demand" / "model"
    pipeline.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "plants"\n')
    for folder in (package, package / "defs", package / "defs" / "demand"):
        (folder / "__init__.py").write_text('"""A package."""\n')
    (package / "defs" / "demand" / "train.py").write_text(_SCRIPT)
    (package / "defs" / "demand" / "net.py").write_text(_NET)
    layers = package / "defs" / "demand" / "layers"
    layers.mkdir()
    (layers / "__init__.py").touch()
    (layers / "hidden.py").write_text("WIDTH = 8\n")
    (package / "defs" / "demand" / "pages.py").write_text(_PAGES)
    head, _, tail = DECLARED.partition("    function: ml_assets.defs.store_demand.model.build\n")
    own = "    script: plants.defs.demand.train\n    arguments: [50, 10]\n  training: {workers: 2}\n"
    (pipeline / "defs.yaml").write_text(head + own + tail[tail.index("  resources:") :])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] == "plants"]:
        del sys.modules[name]


def test_a_script_in_a_folder_without_defs_yaml_is_not_run_by_loading(project: Path) -> None:
    defs = PipelineTree.for_project(project).build_defs()
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    keys = {key.to_user_string() for asset in assets for key in asset.keys}
    assert {"page", "store_demand/checkpoint"} <= keys
    assert "plants.defs.demand.pages" in sys.modules
    assert not {"plants.defs.demand.train", "plants.defs.demand.net"} & sys.modules.keys()


def test_the_version_of_a_script_follows_modules_and_packages_beside_it(project: Path) -> None:
    before = script_version("plants.defs.demand.train")
    hidden = project / "defs" / "demand" / "layers" / "hidden.py"
    hidden.write_text("# A comment.\nWIDTH = 8\n")
    assert script_version("plants.defs.demand.train") == before
    hidden.write_text("WIDTH = 16\n")
    assert script_version("plants.defs.demand.train") != before


def test_a_module_that_only_a_changed_path_would_find_is_refused(project: Path) -> None:
    (project / "defs" / "demand" / "layers" / "hidden.py").write_text("import wide\n\nWIDTH = wide.WIDTH\n")
    (project / "defs" / "demand" / "layers" / "wide.py").write_text("WIDTH = 8\n")
    with pytest.raises(SourceUnavailable, match=r"Write `from plants.defs.demand.layers import wide`"):
        script_version("plants.defs.demand.train")


def test_positional_arguments_are_for_scripts() -> None:
    with pytest.raises(ValidationError, match="give a model function its values in hyperparameters"):
        ModelSection.model_validate(
            {"function": readings_pipeline.PIPELINE["model"]["function"], "arguments": [1]}
        )

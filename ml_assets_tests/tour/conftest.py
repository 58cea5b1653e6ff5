"""The project as a reader of the docs has it."""

import shutil

import pytest

from ml_assets_tests.tour.pages import ROOT, Checkout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The project as a reader of the page has it, but for its pipelines."""
    folder = tmp_path_factory.mktemp("tour")
    pipelines = [path.name for path in (ROOT / "ml_assets" / "defs").iterdir() if path.is_dir()]
    for part in ("resources", "deployment", "ml_assets"):
        left_out = shutil.ignore_patterns("__pycache__", *pipelines)
        shutil.copytree(ROOT / part, folder / part, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return Checkout(folder)

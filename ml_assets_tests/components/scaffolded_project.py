"""A project of its own whose pipelines are scaffolded, as `dg scaffold defs` does for a user."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ml_assets.components.scaffold.scaffolders import CsvParams, TrainingPipelineScaffolder


@contextmanager
def project_of_shops(folder: Path, path: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the empty defs folder of the project `shops`, which can be imported during the block."""
    defs = folder / "shops" / "defs"
    defs.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "shops"\n')
    for package in (defs.parent, defs):
        (package / "__init__.py").write_text('"""A package."""\n')
    path.syspath_prepend(str(folder))
    try:
        yield defs
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "shops"]:
            del sys.modules[name]


def scaffold(defs: Path, name: str) -> Path:
    """Write the pipeline `name`, from source to model; return its `defs.yaml`."""
    target = defs / name
    target.mkdir()
    request: dg.ScaffoldRequest[Any] = dg.ScaffoldRequest(
        type_name="ml_assets.components.TrainingPipeline",
        target_path=target,
        scaffold_format="yaml",
        project_root=defs.parents[1],
        params=CsvParams(),
    )
    with redirect_stdout(io.StringIO()):
        TrainingPipelineScaffolder().scaffold(request)
    return target / "defs.yaml"

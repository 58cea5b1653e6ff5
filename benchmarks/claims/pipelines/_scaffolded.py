"""Copies of this project with scaffolded pipelines, as a user makes them."""

import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ml_assets.foundation.checkout import ROOT


def checkout(folder: Path) -> Path:
    """Copy this project without its pipelines: `dg scaffold` writes into a project."""
    pipelines = [path.name for path in (ROOT / "ml_assets" / "defs").iterdir() if path.is_dir()]
    for part in ("resources", "deployment", "ml_assets"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", *pipelines))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def scaffold(project: Path, pipelines: int) -> None:
    """Write the pipelines `shop_0000` and on, by the scaffolder of `dg scaffold defs`, without a process for each."""
    import dagster as dg

    from ml_assets.components.scaffold.scaffolders import CsvParams, TrainingPipelineScaffolder

    for number in range(pipelines):
        target = project / "ml_assets" / "defs" / f"shop_{number:04}"
        target.mkdir()
        request: dg.ScaffoldRequest[Any] = dg.ScaffoldRequest(
            type_name="ml_assets.components.TrainingPipeline",
            target_path=target,
            scaffold_format="yaml",
            project_root=project,
            params=CsvParams(),
        )
        with redirect_stdout(io.StringIO()):
            TrainingPipelineScaffolder().scaffold(request)

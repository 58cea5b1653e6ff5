"""Root of the source tree: the folder of `pyproject.toml`, `workspace.yaml` and `deployment/`."""

from pathlib import Path

ROOT = Path(__file__).parents[2]

"""Root of the source tree, with `pyproject.toml`, `workspace.yaml` and `deployment/`."""

from pathlib import Path

ROOT = Path(__file__).parent.parent

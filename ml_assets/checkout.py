"""Where the source tree lies: `pyproject.toml`, `workspace.yaml` and `deployment/` are there."""

from pathlib import Path

ROOT = Path(__file__).parent.parent

"""Root of the source tree: the folder of `pyproject.toml`, `workspace.yaml` and `deployment/`; and its version."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def version() -> str:
    """Return the version of this code, from `pyproject.toml`: images and wheels hold that file, too."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

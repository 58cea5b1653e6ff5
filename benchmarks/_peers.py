"""Environment of a benchmark's peers: libraries that the project does not lock, installed apart from it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = Path(__file__).with_name("research")
"""Scripts that such an interpreter runs."""


def peers_python(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment `name` with `packages`; make the environment if it is missing."""
    home = Path(os.environ.get("ML_ASSETS_BUILD_CACHE", Path.home() / ".cache/ml-assets")) / name
    python = home / "bin" / "python"
    done = home / "installed"
    if not done.exists() or done.read_text() != "\n".join(packages):
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--clear", home], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
        done.write_text("\n".join(packages))
    return python

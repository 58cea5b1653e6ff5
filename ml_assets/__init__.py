"""Dated raw data to registered PyTorch models, as Dagster assets on versioned inputs.

`ml_assets.open()` is the way in for notebooks and programs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml_assets.context import Context


def open(home: str | Path | None = None, *, env: str | None = None, writes: bool = False) -> "Context":
    """Return the platform in `home`, by default that of ML_ASSETS_HOME, with all other settings of the environment.

    It only reads, unless `writes` is true. `env` is an environment of the home, by default that of ML_ASSETS_ENV.
    Raises `HomeRefused` and `EnvironmentMissing`.
    """
    from ml_assets.context import open_context  # workers import this package, and need none of it

    return open_context(home, env=env, writes=writes)

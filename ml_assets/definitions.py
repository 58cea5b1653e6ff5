"""Code location that Dagster loads, and the way in which commands load the same definitions.

Not here: what is defined (`assembly`), which is imported only on loading.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from ml_assets.dagster_host.commands import require_home, require_whole_models
from resources.settings import Settings


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that `workspace.yaml` loads.

    Raises `CommandRefused` if a command of Dagster cannot run as requested.
    """
    settings = Settings()
    require_home(os.environ, sys.argv, settings.dagster_home)
    loaded = load(settings)
    require_whole_models(loaded, sys.argv)
    return loaded


def load(settings: Settings) -> dg.Definitions:
    """Import and return all definitions for `settings`; see `assembly.build_defs`."""
    with _no_garbage_collection():
        from ml_assets.assembly import build_defs

        return build_defs(settings)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: all that is loaded stays, and looking through it takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

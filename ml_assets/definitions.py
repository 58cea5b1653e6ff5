"""Code location that Dagster loads, and the way in which commands load the same definitions.

Not here: what is defined (`assembly`), which is imported only on loading.
"""

import gc
import os
import sys

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
    """Import and return all definitions for `settings`; see `assembly.build_defs`.

    Meanwhile Python collects no garbage: all that is loaded stays, and looking through it takes a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        from ml_assets.assembly import build_defs

        return build_defs(settings)
    finally:
        if was_enabled:
            gc.enable()

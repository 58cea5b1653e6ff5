"""Code location that Dagster loads, and the way in which commands load the same definitions.

Not here: what is defined (`assembly`), which is imported only on loading.
"""

import gc
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from ml_assets.dagster_host.commands import require_home, require_whole_models
from ml_assets.foundation.code.syntax import reading_once
from resources.settings import Settings

if TYPE_CHECKING:
    from ml_assets.dagster_host.defs_folder import PipelineTree


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that `workspace.yaml` loads.

    Raises `CommandRefused` if a command of Dagster cannot run as requested.
    """
    settings = Settings()
    require_home(os.environ, sys.argv, settings.dagster_home)
    loaded = load(settings, only=settings.only)
    require_whole_models(loaded, sys.argv)
    return loaded


def load(settings: Settings, tree: "PipelineTree | None" = None, only: Sequence[str] = ()) -> dg.Definitions:
    """Import and return all definitions for `settings`, or those of `only`; see `assembly.build_defs`."""
    with loading():
        from ml_assets.assembly import build_defs

        return build_defs(settings, tree=tree, only=only)


@contextmanager
def loading(*, replaces: bool = True) -> Generator[None]:
    """Load definitions faster during the block: the code of pipelines is read once, and no garbage is collected.

    All that is loaded stays, and looking through it for garbage takes a quarter of the time. So it is never looked
    through, not after the block either, until the next such block: then what was loaded before may be garbage, unless
    the block adds to it (`replaces=False`).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    if replaces and gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    try:
        with reading_once():
            yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()

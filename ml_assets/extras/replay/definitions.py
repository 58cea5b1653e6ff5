"""Code location of a replay, which its pages, its daemon and its runs load in place of `ml_assets.definitions`."""

import dagster as dg

from ml_assets.definitions import loading
from resources.settings import Settings


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the replay in the home that the environment names."""
    with loading():
        from ml_assets.extras.replay.pipeline import definitions

        return definitions(Settings())

"""The readings as a code location for a real daemon. Backfills of a table are divided into runs of two days."""

import dagster as dg

from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import Installation, readings_components
from resources.settings import Settings


@dg.definitions
def defs() -> dg.Definitions:
    """Return the pipeline over the home of the environment, with a source that no sensor watches."""
    settings = Settings()
    divided = {"backfill": {"partitions_per_run": 2}, "automation_condition": "none"}
    source = {"source": {"function": f"{readings_pipeline.HERE}.read_readings"}}
    return Installation(settings.home, readings_components({**divided, **source}, divided), settings).defs

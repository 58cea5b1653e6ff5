"""The readings pipeline as a code location for a real daemon and webserver; its schedule ticks every minute.

`dagster-daemon run -m ml_assets_tests.components.readings_location` runs it. A file holds the latest day of
its source, so a test says when a day is over.
"""

from datetime import date

import dagster as dg

from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import Installation, readings_components
from resources.settings import Settings

LATEST = "latest-day"
"""File of the home that holds the latest day of the source, ISO 8601."""


def latest() -> date:
    """Return the latest day that the test has declared over."""
    return date.fromisoformat((Settings().home / LATEST).read_text())


@dg.definitions
def defs() -> dg.Definitions:
    """Return the pipeline with a schedule that is switched on, and a source that no sensor watches."""
    settings = Settings()
    schedule = {"cron": "* * * * *", "latest": f"{__name__}.latest", "enabled": True}
    components = readings_components(
        dataset={"source": {"function": f"{readings_pipeline.HERE}.read_readings"}},
        pipeline={"schedule": schedule},
    )
    return Installation(settings.home, components, settings).defs

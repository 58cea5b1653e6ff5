"""One tick of the sensor that prunes trainings, as the code location evaluates it."""

import dagster as dg

from ml_assets.components.sensors.ended_runs import prune_trainings
from resources.platform import Platform


def sweep(platform: Platform, instance: dg.DagsterInstance | None = None) -> str:
    """Evaluate the sensor; return what it says. `instance` knows which runs have ended."""
    with dg.build_sensor_context(instance=instance, resources={"platform": platform}) as context:
        found = prune_trainings(context)
    assert isinstance(found, dg.SensorResult)
    assert found.skip_reason is not None
    return found.skip_reason.skip_message or ""

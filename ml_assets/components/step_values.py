"""Values that steps of a run hand each other: small JSON, a file each, in the folder of the run.

Dagster's own manager pickles them to one place for an asset's partition, where two runs overwrite each other, and
shows that place as the asset's `path`. Data and weights go another way: by the lake and the artifacts.
"""

import json
from pathlib import Path
from typing import Any

import dagster as dg


class StepValues(dg.IOManager):
    """Files of JSON under `folder`. A run that goes on from a failed one reads the files of that run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Write `obj`, which must be JSON."""
        path = self._path(context)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(obj))

    def load_input(self, context: dg.InputContext) -> Any:
        """Read what the step upstream wrote."""
        upstream = context.upstream_output
        assert upstream is not None  # every input of a step that is read is another step's output
        return json.loads(self._path(upstream).read_text())

    def _path(self, output: dg.OutputContext) -> Path:
        run, *names = output.get_identifier()
        return self._folder / run / f"{'.'.join(names)}.json"


@dg.io_manager(description="JSON values between the steps of a run.")
def step_values(context: dg.InitResourceContext) -> StepValues:
    """Return the manager over the storage folder of Dagster's home."""
    instance = context.instance
    assert instance is not None  # only a run makes resources
    return StepValues(Path(instance.storage_directory()))

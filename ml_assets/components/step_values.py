"""Values that steps of a run hand each other: small JSON, a file each, in the folder of the run.

Dagster's own manager pickles them to one place for an asset's partition, where two runs overwrite each other, and
shows that place as the asset's `path`. Data and weights go another way: by the lake and the artifacts. Not here: what
a value holds (`pipeline.values`).
"""

from pathlib import Path

import dagster as dg

from ml_assets.pipeline.values import StepValue


class StepValueUnreadable(Exception):
    """The file between two steps is not there, or holds another document than the step reads."""


class StepValues(dg.IOManager):
    """Files of JSON under `folder`. A run that goes on from a failed one reads the files of that run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def handle_output(self, context: dg.OutputContext, obj: StepValue) -> None:
        """Write `obj`."""
        path = self._path(context)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(obj.to_json())

    def load_input(self, context: dg.InputContext) -> StepValue:
        """Read what the step upstream wrote, as the type that the step declares for its input. `StepValueUnreadable`
        where the run began with another version of ml_assets, or its folder is gone."""
        upstream = context.upstream_output
        assert upstream is not None  # every input of a step that is read is another step's output
        value: type[StepValue] = context.dagster_type.typing_type
        path = self._path(upstream)
        try:
            return value.from_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StepValueUnreadable(
                f"{path} is not the {value.__name__} that step {context.op_def.name} goes on from ({error}): the run "
                "began elsewhere or with another version of ml_assets. Launch the partition anew"
            ) from error

    def _path(self, output: dg.OutputContext) -> Path:
        run, *names = output.get_identifier()
        return self._folder / run / f"{'.'.join(names)}.json"


@dg.io_manager(description="JSON values between the steps of a run.")
def step_values(context: dg.InitResourceContext) -> StepValues:
    """Return the manager over the storage folder of Dagster's home."""
    instance = context.instance
    assert instance is not None  # only a run makes resources
    return StepValues(Path(instance.storage_directory()))

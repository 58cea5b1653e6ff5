"""Values that steps of a run pass to each other: one small JSON file each, in the folder of the run.

Dagster's own manager pickles them to a path per asset and partition, where two runs overwrite each other. It also shows
that path as the asset's `path`. Data and weights pass through the lake and the artifacts. Not here: the content of a
value (`pipeline.values`).
"""

from pathlib import Path

import dagster as dg

from ml_assets.model.steps.values import StepValue


class StepValueUnreadable(Exception):
    """The file between two steps is missing, or holds another document than the step reads."""


class StepValues(dg.IOManager):
    """JSON files under `folder`. A run that re-executes a failed run from failure reads the files of that run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def handle_output(self, context: dg.OutputContext, obj: StepValue) -> None:
        """Write `obj`."""
        path = self._path(context)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(obj.to_json())

    def load_input(self, context: dg.InputContext) -> StepValue:
        """Read the value of the upstream step, as the type that the step declares for its input.

        Raises `StepValueUnreadable` if the run began with another version of ml_assets, or if its folder is gone.
        """
        upstream = context.upstream_output
        assert upstream is not None  # every input that is read is the output of another step
        value: type[StepValue] = context.dagster_type.typing_type
        path = self._path(upstream)
        try:
            return value.from_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StepValueUnreadable(
                f"{path} is not the {value.__name__} that step {context.op_def.name} needs ({error}): "
                f"the run began on another machine or with another version of ml_assets. Launch the partition again"
            ) from error

    def _path(self, output: dg.OutputContext) -> Path:
        run, *names = output.get_identifier()
        return self._folder / run / f"{'.'.join(names)}.json"


@dg.io_manager(description="JSON values between the steps of a run.")
def step_values(context: dg.InitResourceContext) -> StepValues:
    """Return the manager for the storage folder of Dagster's home."""
    instance = context.instance
    assert instance is not None  # only a run creates resources
    return StepValues(Path(instance.storage_directory()))

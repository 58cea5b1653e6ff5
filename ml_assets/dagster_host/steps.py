"""Events and values of a running step: many materializations in one write, the output that downstream steps wait for,
and small JSON files between the steps of a run.

A single event costs 15 ms on SQLite and 50 ms on PostgreSQL, because each opens a connection and commits several times:
half a minute for a year. Dagster's own manager of values pickles them to a path per asset and partition, where two runs
overwrite each other, and shows that path as the asset's `path`. Not here: the content of an event or of a value
(`steps.values`). Data and weights pass through the lake and the artifacts.

Private area: events of a running step. The public `log_event` stores one event at a time, although Dagster's
storages accept a batch. The public `dg.Output` would materialize every partition again, all with one data version.
"""

import uuid
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from dagster._core.events import DagsterEventBatchMetadata
from dagster._core.execution.plan.outputs import StepOutputData, StepOutputHandle

from ml_assets.model.steps.values import StepValue


def log_materializations(
    context: dg.AssetExecutionContext, materializations: Sequence[dg.AssetMaterialization]
) -> None:
    """Log each materialization, in order. Dagster stores batches of `DAGSTER_EVENT_BATCH_SIZE`, if that is set."""
    step = context.get_step_execution_context()
    batch, last = uuid.uuid4().hex, len(materializations) - 1
    context.op_execution_context._events += [
        dg.DagsterEvent.asset_materialization(step, one, DagsterEventBatchMetadata(batch, number == last))
        for number, one in enumerate(materializations)
    ]


def log_output(context: dg.AssetExecutionContext) -> None:
    """Log the output event of a table's step. Without it Dagster skips the downstream steps, in a green run."""
    step = context.get_step_execution_context()
    name = context.assets_def.get_output_name_for_asset_key(context.asset_key)
    handle = StepOutputHandle(step.step.key, name)
    context.op_execution_context._events.append(
        dg.DagsterEvent.step_output_event(step, StepOutputData(handle))
    )


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

"""Values between steps: JSON of one run each, found again by a run that goes on from a failed one."""

from pathlib import Path

import dagster as dg
import pytest

from ml_assets.dagster_host.steps import step_values
from ml_assets.model.steps.values import ValidatedWindow

FIXED = "fixed"


MADE = ValidatedWindow(
    commit="c1",
    table="features/shifts",
    keys=("2024-01-01",),
    stale={"2024-01-01": "its code changed"},
    inputs=({"table": "features/shifts", "partitions": 1},),
    declared="d1",
)


@dg.op
def produce() -> ValidatedWindow:
    return MADE


@dg.op(out=dg.Out(dg.Nothing))
def consume(context: dg.OpExecutionContext, made: ValidatedWindow) -> None:
    """Fails until the file is there."""
    assert made == MADE
    assert (Path(context.instance.root_directory) / FIXED).exists()


@dg.job(resource_defs={"io_manager": step_values}, executor_def=dg.in_process_executor)
def two_steps() -> None:
    consume(produce())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "error:`OutputContext")
def test_a_run_goes_on_from_the_values_of_the_failed_one(tmp_path: Path) -> None:
    job = dg.reconstructable(two_steps)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        failed = dg.execute_job(job, instance=instance)
        assert not failed.success
        (tmp_path / FIXED).touch()
        again = dg.execute_job(
            job,
            instance=instance,
            reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, instance),
        )
        assert again.success
        assert {event.step_key for event in again.all_events if event.is_step_start} == {"consume"}
        assert [path.name for path in tmp_path.rglob("*.json")].count("produce.result.json") == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_value_of_another_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    job = dg.reconstructable(two_steps)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        failed = dg.execute_job(job, instance=instance)
        (written,) = tmp_path.rglob("produce.result.json")
        written.write_text('{"commit": "c1", "keys": [], "stale": {}}')
        again = dg.execute_job(
            job,
            instance=instance,
            reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, instance),
        )
        (event,) = again.get_step_failure_events()
        error = event.step_failure_data.error
        said = error.cause.message if error.cause else error.message
        assert "is not the ValidatedWindow that step consume needs" in said
        assert "Launch the partition again" in said

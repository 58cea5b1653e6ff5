"""Values between steps: JSON of one run each, found again by a run that goes on from a failed one."""

from pathlib import Path

import dagster as dg
import pytest

from ml_assets.components.step_values import step_values

FIXED = "fixed"


@dg.op
def produce() -> dict[str, object]:
    return {"keys": ["2024-01-01"], "commit": "c1", "stale": {}}


@dg.op
def consume(context: dg.OpExecutionContext, made: dict[str, object]) -> None:
    """Fails until the file is there."""
    assert made == {"keys": ["2024-01-01"], "commit": "c1", "stale": {}}
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

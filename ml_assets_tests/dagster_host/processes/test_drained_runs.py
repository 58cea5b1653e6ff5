"""The row of a run, not a signal, says if it is canceled: a process that is asked to end leaves a run that resumes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._daemon.monitoring.run_monitoring import RESUME_RUN_LOG_MESSAGE

from ml_assets.components.failures import comes_back
from ml_assets.dagster_host.drained_runs import DRAINED, deaths_of, is_canceled
from ml_assets.dagster_host.instance import on_a_cluster
from ml_assets_tests.dagster_host.processes import drained_process
from ml_assets_tests.dagster_host.processes.drained_process import CANCELED, TELL, waiting

_NO_CLUSTER = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
    "current-context": "c",
}
FAILED, ENDED = dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE


@pytest.fixture(params=[True, False], ids=["resumes", "ends"])
def resumes(request: pytest.FixtureRequest) -> bool:
    """True if the monitoring of the instance resumes runs, as in a cluster."""
    return request.param


@pytest.fixture
def instance(tmp_path: Path, resumes: bool) -> Iterator[dg.DagsterInstance]:
    settings: dict[str, Any] = {"run_monitoring": {"enabled": True}, "telemetry": {"enabled": False}}
    if resumes:
        there = on_a_cluster()
        launcher = there["run_launcher"]
        launcher["config"] |= {
            "load_incluster_config": False,
            "kubeconfig_file": str(tmp_path / "kubeconfig"),
        }
        launcher["config"]["job_namespace"] = "team-a"
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(_NO_CLUSTER))
        settings |= {"run_monitoring": there["run_monitoring"], "run_launcher": launcher}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def executed(instance: dg.DagsterInstance, folder: Path, **tags: str) -> tuple[dg.DagsterRun, int, str]:
    """Execute a run in a process that gets SIGTERM; return the run, the exit code and the output."""
    run = instance.create_run_for_job(waiting, tags=tags)
    command = (sys.executable, "-m", drained_process.__name__, str(folder), run.run_id)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    now = instance.get_run_by_id(run.run_id)
    assert now is not None
    said = [one.message for one in instance.all_logs(run.run_id)]
    return now, done.returncode, "\n".join([*said, done.stderr])


def test_a_drained_run_ends_without_a_failure_if_it_resumes(
    instance: dg.DagsterInstance, tmp_path: Path, resumes: bool
) -> None:
    run, code, said = executed(instance, tmp_path)
    assert f"{TELL} True" in said
    failures = instance.all_logs(run.run_id, of_type={FAILED, ENDED})
    if resumes:
        assert (run.status, code, failures) == (dg.DagsterRunStatus.STARTED, 75, []), said
        assert DRAINED in said
        assert deaths_of(instance, run.run_id) == 0
    else:  # its trainings stay for a retry, or for the pruner
        assert run.status == dg.DagsterRunStatus.FAILURE
        assert DRAINED not in said


def test_a_run_that_a_person_cancels_is_canceled(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run, _, said = executed(instance, tmp_path, **{CANCELED: "yes"})
    assert f"{TELL} False" in said
    assert run.status == dg.DagsterRunStatus.CANCELED
    assert is_canceled(instance, run.run_id)


@pytest.mark.parametrize("resumes", [True], indirect=True)
def test_only_pods_that_died_by_themselves_count(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(waiting)
    for message in (DRAINED, RESUME_RUN_LOG_MESSAGE, DRAINED, RESUME_RUN_LOG_MESSAGE):
        instance.report_engine_event(message, run)
    assert deaths_of(instance, run.run_id) == 1


@pytest.mark.parametrize("resumes", [True], indirect=True)
def test_a_storage_that_does_not_answer_cancels_nothing(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """To cancel is a write to the same storage. A deleted run is canceled."""
    run = instance.create_run_for_job(waiting)
    assert not is_canceled(instance, run.run_id)
    assert is_canceled(instance, "of nobody")
    (tmp_path / "history" / "runs.db").write_bytes(b"torn" * 2000)
    assert not is_canceled(instance, "of nobody")


def test_an_interruption_outside_of_a_run_is_a_cancel() -> None:
    assert not comes_back(KeyboardInterrupt())

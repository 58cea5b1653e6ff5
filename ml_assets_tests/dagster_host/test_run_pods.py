"""The Jobs of all runs, which Dagster's monitoring asks for one by one."""

from pathlib import Path

import pytest
from dagster_k8s.client import DagsterKubernetesClient
from kubernetes import client, config

from ml_assets.dagster_host import run_pods
from ml_assets.dagster_host.run_pods import OF_RUNS, JobsOfRuns
from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer, serving

RUNS = 200


def job(number: int, **status: int) -> dict[str, object]:
    """Return the Job of a run."""
    name = f"dagster-run-{number}"
    return {"metadata": {"name": name, "labels": {OF_RUNS: str(number)}}, "status": status}


def client_of(server: ApiServer, folder: Path) -> JobsOfRuns:
    """Return a client of that server."""
    api = config.new_client_from_config(str(server.kubeconfig(folder)))
    core, batch = client.CoreV1Api(api), client.BatchV1Api(api)
    return JobsOfRuns(DagsterKubernetesClient.production_client(batch, core))


def test_the_jobs_of_all_runs_are_read_by_one_request(tmp_path: Path) -> None:
    with serving() as server:
        for number in range(RUNS):
            server.put("jobs", job(number, active=1))
        jobs = client_of(server, tmp_path)
        found = [jobs.get_job_status(f"dagster-run-{number}", NAMESPACE) for number in range(RUNS)]
        assert [one and one.active for one in found] == [1] * RUNS
        assert server.requests == ["GET jobs"]


def test_a_job_that_failed_or_was_just_made_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        server.put("jobs", job(1, active=1))
        jobs = client_of(server, tmp_path)
        first = jobs.get_job_status("dagster-run-1", NAMESPACE)
        server.put("jobs", job(1, failed=1))
        server.put("jobs", job(2, active=1))
        second = jobs.get_job_status("dagster-run-2", NAMESPACE)
        assert jobs.get_job_status("dagster-run-3", NAMESPACE) is None
        monkeypatch.setattr(run_pods, "KEPT_SECONDS", 0.0)
        later = jobs.get_job_status("dagster-run-1", NAMESPACE)
    assert first is not None
    assert second is not None
    assert later is not None
    assert (first.active, second.active, later.failed) == (1, 1, 1)

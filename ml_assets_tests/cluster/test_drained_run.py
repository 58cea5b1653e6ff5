"""The pod of a run is evicted or deleted while its trainers train: they go on, and the resumed run attaches to them."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.monitoring.run_monitoring import count_resume_run_attempts
from dagster_graphql.cli import execute_query

from ml_assets.dagster_host.drained_runs import DRAINED, deaths_of
from ml_assets_tests.cluster import run_location
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment, waited_for
from ml_assets_tests.cluster.dagster_on_cluster import ACCOUNTS, DagsterOnCluster, dagster_on_cluster
from ml_assets_tests.cluster.launched_job import logged_steps, settings_of
from ml_assets_tests.cluster.unhurried_model import NOW
from ml_assets_tests.components.installation import Installation, key_of
from ml_assets_tests.components.readings_pipeline import WINDOW, days
from resources.job.events import EVENTS, RESULT, read_events
from resources.job.job import TrainingResult

pytestmark = pytest.mark.timeout(1800)

LEASE_SECONDS = 5
FIRST_NODE = 1
(DAY,) = days(1, start=WINDOW)
STAGES = ("training_set", "checkpoint", "evaluation", "registered_model")
REMOVED_SECONDS = 20
"""A cancel is a request to Dagster, the end of the run's pod, and five seconds for the trainers to save."""

TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"


@pytest.fixture(params=["job", "jobset"])
def back_end(request: pytest.FixtureRequest, cluster: ClusterEnvironment) -> str:
    """Back end of the trainings."""
    if request.param == "jobset":
        cluster.cluster.add_jobsets()
    return request.param


@pytest.fixture
def variables(reachable: dict[str, str], back_end: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Environment of the installation, also of its runs in pods."""
    own = {
        "ML_ASSETS_KUBERNETES_LEASE_SECONDS": str(LEASE_SECONDS),
        "ML_ASSETS_KUBERNETES_BACKEND": back_end,
        "STEP_LOGS_BUCKET": "artifacts",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return reachable | own


@pytest.fixture
def installation(variables: dict[str, str]) -> Installation:
    """The readings pipeline with an empty lake."""
    return run_location.installed(settings_of(variables))


@pytest.fixture
def dagster(
    tidy: ClusterEnvironment,
    variables: dict[str, str],
    installation: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[DagsterOnCluster]:
    """Dagster of that installation."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    dagster = dagster_on_cluster(tidy, variables, installation.defs, folder, first_node=FIRST_NODE)
    monkeypatch.setenv("KUBECONFIG", str(folder / ACCOUNTS / "pruner"))  # of the sweeps
    with dagster.instance as instance:
        installation.instance = instance
        yield dagster


def evict(cluster: ClusterEnvironment, pod: str) -> None:
    """Evict a pod, as `kubectl drain` does."""
    meta = {"name": pod, "namespace": cluster.namespace}
    eviction = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/eviction"
    cluster.kubectl("create", "--raw", path, "--filename=-", stdin=eviction)


def delete(cluster: ClusterEnvironment, pod: str) -> None:
    """Delete a pod with its grace period, as the notice of a spot machine does."""
    cluster.kubectl("delete", "pod", pod, "--wait=false")


def begun(dagster: DagsterOnCluster, installation: Installation) -> str:
    """Launch the pipeline of the readings; return the run's id once a step was trained."""
    installation.with_tables(1)
    model = run_location.model_of(installation.settings)
    run_id = dagster.launch([f"{model}/{stage}" for stage in STAGES], DAY)
    dagster.until(lambda: dagster.observations(run_id) > 0, "a step to be trained")
    return run_id


def drained(dagster: DagsterOnCluster, run_id: str, number: int) -> None:
    """End the pod of a run for the `number`-th time; wait until another attached to the trainers and heard a step."""
    pods = dagster.cluster.objects("pods", f"--selector=dagster/run-id={run_id}")
    (pod,) = (one["metadata"]["name"] for one in pods if one["status"]["phase"] == "Running")
    (evict if number % 2 else delete)(dagster.cluster, pod)
    dagster.until(lambda: dagster.messages(run_id).count(DRAINED) == number, "the run's process to end")
    attached = lambda: sum(line.startswith("attached to ") for line in dagster.messages(run_id))  # noqa: E731
    dagster.until(lambda: attached() == number, "the resumed run to attach")
    heard = dagster.observations(run_id)
    dagster.until(lambda: dagster.observations(run_id) > heard, "a step that the resumed run hears")


@pytest.mark.parametrize(
    "drains",
    [2, pytest.param(10, marks=[pytest.mark.alone, pytest.mark.nightly])],
    ids=["twice", "ten_times"],
)
def test_a_training_goes_on_while_its_run_is_drained(
    dagster: DagsterOnCluster,
    installation: Installation,
    hurry: Path,
    drains: int,
    back_end: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same trainers train every step once, and the run succeeds without a failed step."""
    run_id = begun(dagster, installation)
    trainers = dagster.trainers()
    began = time.monotonic()
    for number in range(1, drains + 1):
        drained(dagster, run_id, number)
        assert dagster.trainers() == trainers
    (hurry / NOW).touch()
    dagster.until(lambda: dagster.run(run_id).is_finished, "the run to end")
    assert dagster.run(run_id).is_success, dagster.about()
    assert count_resume_run_attempts(dagster.instance, run_id) == drains
    assert deaths_of(dagster.instance, run_id) == 1, "only the pod that ended well"
    assert dagster.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE) == []

    model = run_location.model_of(installation.settings)
    event = dagster.instance.get_latest_materialization_event(key_of(f"{model}/checkpoint"))
    assert event is not None
    assert event.asset_materialization is not None
    training = Path(str(event.asset_materialization.metadata["folder"].value)).name
    folder = installation.platform.artifacts.pull(f"training/{model}/{training}", [EVENTS, RESULT])
    result = TrainingResult.read(folder / RESULT)
    steps = logged_steps(read_events(folder))
    repeated, lost = len(steps) - len(set(steps)), len(set(range(1, result.steps + 1)) - set(steps))
    with capsys.disabled():
        print(
            f"\n{back_end}: run's pod ended {drains} times in {time.monotonic() - began:.0f} s: {lost} steps lost, "
            f"{repeated} repeated, of {result.steps}"
        )
    assert (result.attempts, lost, repeated) == (1, 0, 0)
    waited_for(lambda: dagster.trainers() == {}, "the trainers to go", 60, dagster.about)
    assert dagster.cluster.objects("leases") == []


def test_a_cancel_still_removes_the_training_within_seconds(
    dagster: DagsterOnCluster,
    installation: Installation,
    back_end: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the mutation of the page's button, after a drain."""
    run_id = begun(dagster, installation)
    drained(dagster, run_id, 1)
    began = time.monotonic()
    with WorkspaceProcessContext(dagster.instance, EmptyWorkspaceTarget()) as workspace:
        answer: Any = execute_query(workspace, TERMINATE, {"run": run_id})
    assert answer["data"]["terminateRun"]["__typename"] == "TerminateRunSuccess", answer
    waited_for(lambda: dagster.trainers() == {}, "the trainers to go", REMOVED_SECONDS, dagster.about)
    took = time.monotonic() - began
    waited_for(lambda: dagster.run(run_id).is_finished, "the run to end", 60, dagster.about)
    with capsys.disabled():
        print(f"\ncanceled: trainers were gone after {took:.1f} s")
    assert dagster.run(run_id).status == dg.DagsterRunStatus.CANCELED
    assert dagster.cluster.objects("leases,jobsets" if back_end == "jobset" else "leases") == []

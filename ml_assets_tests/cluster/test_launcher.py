"""The launcher on a real cluster: results, failures and their words, attempts, and that nothing is left behind."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployment.local.servers import Servers
from deployment.local.servers.record import storage_variables
from ml_assets.components.sweeping import EVERY_SECONDS
from ml_assets_tests.cluster.environment import REPOSITORY, ClusterEnvironment, waited_for
from ml_assets_tests.cluster.launching import (
    Launching,
    job_of,
    kubeconfig_of,
    metric_steps,
    settings_of,
    worker_variables,
)
from resources.launcher.errors import (
    AttemptsExhausted,
    BadConfiguration,
    DeadlineExceeded,
    Diverged,
    ImageUnavailable,
    InputChanged,
    OutOfMemory,
    PodNotStarted,
    TrainingFailed,
    Unschedulable,
)
from resources.launcher.kubernetes.doctor import cluster_checks
from resources.launcher.protocol import TrainingEvent, training_folder_name
from resources.platform import Platform
from resources.settings import KubernetesSettings

Launch = Callable[..., Launching]
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def launching(
    tidy: ClusterEnvironment,
    running_servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Launch:
    """A job of this test's own, with a home and a prefix among the artifacts of its own."""
    record = running_servers.record
    for name, value in storage_variables(record).items():
        monkeypatch.setenv(name, value)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "snapshot.json").write_text("{}")
    variables = {
        **worker_variables(tidy),
        **storage_variables(record),
        "ML_ASSETS_HOME": str(tmp_path / "home"),
        "ML_ASSETS_ARTIFACTS_URL": f"s3://artifacts/{tidy.namespace}-{time.time_ns()}",
        "ML_ASSETS_S3_ENDPOINT_URL": record.url("s3"),
    }
    monkeypatch.setenv("KUBECONFIG", variables["KUBECONFIG"])

    def make(lease_seconds: int = 8, **facts: Any) -> Launching:
        job = job_of(request.node.name, snapshot=snapshot, **facts)
        own = {**variables, "ML_ASSETS_KUBERNETES_LEASE_SECONDS": str(lease_seconds)}
        return Launching(tidy, settings_of(own), own, job)

    return make


def test_pods_on_two_nodes_leave_a_result_and_nothing_else(launching: Launch) -> None:
    launch = launching()
    nodes: set[str] = set()

    def note(event: TrainingEvent) -> None:
        nodes.update(one["spec"]["nodeName"] for one in launch.objects("pods"))

    profile = launch.profile("steps", steps=20, nodes=2)
    launcher = Platform(launch.settings).launcher
    result = launcher.run(launch.job, launch.folder, note, launch.log.append, profile)
    assert result.attempts == 1
    assert Path(result.weights).read_bytes() == b"weights"
    assert Path(result.weights).is_relative_to(launch.settings.home)
    assert len(nodes) == 2
    assert {"pod 0: attempt 1 does steps", "pod 1: attempt 1 does steps"} <= set(launch.log)
    assert launch.left() == []
    assert launch.run(profile) == result
    assert launch.events == []
    assert launch.starts() == 1


def test_the_launchers_role_suffices_for_a_training(
    launching: Launch, tidy: ClusterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = yaml.safe_load_all((REPOSITORY / "deployment/kubernetes/base/accounts.yaml").read_text())
    (role,) = (one for one in accounts if (one["kind"], one["metadata"]["name"]) == ("Role", "launcher"))
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "launcher"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "launcher"},
        "subjects": [{"kind": "ServiceAccount", "name": "somebody"}],
    }
    config = kubeconfig_of(tidy, "somebody", tmp_path)
    tidy.apply(role, binding)
    launch = launching(workers=1).with_kubernetes(context="somebody")
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert launch.run(launch.profile("3 done")).attempts == 2
    assert launch.left() == []
    well = [check() for _, check in cluster_checks(launch.settings)]
    assert len(well) == 3


@pytest.mark.parametrize(
    ("plan", "error"), [("64", BadConfiguration), ("65|1", Diverged), ("66|1", InputChanged)]
)
def test_a_final_exit_code_is_its_error_and_is_not_tried_again(
    launching: Launch, plan: str, error: type[TrainingFailed]
) -> None:
    launch = launching()
    with pytest.raises(error, match="the reason of attempt 1"):
        launch.run(launch.profile(f"{plan} done", nodes=2))
    assert launch.starts() == 1
    assert launch.left() == []


def test_a_pod_out_of_memory_is_final_and_names_its_limit(launching: Launch) -> None:
    launch = launching(workers=1)
    with pytest.raises(OutOfMemory, match=r"pod 0 on node\d used more memory than its limit, .*128Mi"):
        launch.run(launch.profile("hungry done", memory="128Mi"))
    assert launch.starts() == 1
    assert launch.left() == []


def test_an_image_that_is_missing_is_final_and_named(launching: Launch) -> None:
    launch = launching(workers=1).with_kubernetes(image="localhost/nowhere:1", unschedulable_seconds=4)
    with pytest.raises(ImageUnavailable, match=r"pod 0 on node\d cannot get image localhost/nowhere:1"):
        launch.run(launch.profile("done"))
    assert launch.left() == []


def test_a_pod_too_large_for_every_node_is_final_with_the_schedulers_words(launching: Launch) -> None:
    launch = launching(workers=1).with_kubernetes(unschedulable_seconds=3)
    with pytest.raises(Unschedulable, match=r"asks for 512 CPU, .* nodes are available: 2 Insufficient cpu"):
        launch.run(launch.profile("done", cpu="512"))
    assert launch.left() == []


def test_a_secret_that_is_missing_is_final_and_named(launching: Launch) -> None:
    launch = launching(workers=1).with_kubernetes(unschedulable_seconds=4)
    with pytest.raises(PodNotStarted, match='secret "nobody" not found'):
        launch.run(launch.profile("done", env_from_secrets=["nobody"]))
    assert launch.left() == []


def test_a_command_the_image_has_not_is_final_and_named(launching: Launch) -> None:
    launch = launching(workers=1).with_kubernetes(command=("/nowhere/python",))
    with pytest.raises(PodNotStarted, match="/nowhere/python"):
        launch.run(launch.profile("done"))
    assert launch.left() == []


def test_a_deadline_is_final_and_keeps_the_checkpoint(launching: Launch) -> None:
    launch = launching()
    with pytest.raises(DeadlineExceeded, match=r"deadline_minutes, 0\.2"):
        launch.run(launch.profile("steps", steps=3000, nodes=2, deadline_minutes=0.2))
    assert launch.starts() == 1
    assert Platform(launch.settings).artifacts.exists(training_folder_name(launch.job), "step.json")
    assert launch.left() == []


def test_other_ends_are_tried_again_within_the_budget(launching: Launch) -> None:
    launch = launching(workers=1)
    assert launch.run(launch.profile("kill 3 done")).attempts == 3
    assert [line for line in launch.log if "failures: going on" in line] == [
        next(line for line in launch.log if "1 of 3 failures" in line),
        next(line for line in launch.log if "exit code 3" in line and "2 of 3 failures" in line),
    ]
    again = launching(workers=1, max_attempts=2)
    with pytest.raises(AttemptsExhausted, match=r"(?s)2 attempts failed, .*exit code 4.*attempt 2 does 4"):
        again.run(again.profile("kill 4 done"))
    assert launch.left() == again.left() == []


@pytest.mark.parametrize("how", ["delete", "evict", "force"])
def test_a_pod_taken_away_is_noticed_and_costs_no_budget(launching: Launch, how: str) -> None:
    launch = launching(max_attempts=1)
    taken: list[float] = []
    resumed: list[float] = []

    def is_there(pod: str) -> bool:
        return f"{pod}: attempt 1 does steps" in launch.log

    def take_one(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "metrics" and event.step >= 10 and not taken and is_there("pod 1"):
            taken.append(time.monotonic())
            pod = next(
                one["metadata"]["name"]
                for one in launch.objects("pods")
                if one["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "1"
            )
            if how == "evict":
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
                path = f"/api/v1/namespaces/{launch.cluster.namespace}/pods/{pod}/eviction"
                launch.cluster.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))
            else:
                force = ["--force", "--grace-period=0"] if how == "force" else []
                launch.cluster.kubectl("delete", "pod", pod, "--wait=false", *force)
        if event.kind == "started" and taken:
            resumed.append(time.monotonic())

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("steps steps", steps=200, nodes=2)
    result = launcher.run(launch.job, launch.folder, take_one, launch.log.append, profile)
    assert result.attempts == 2
    assert resumed[0] - taken[0] < 30, launch.log
    steps = metric_steps(launch.events)
    assert steps == sorted(set(steps)) == list(range(200))
    assert launch.left() == []


@pytest.mark.usefixtures("_nodes_back")
def test_a_node_that_is_lost_costs_no_budget(launching: Launch) -> None:
    launch = launching(max_attempts=1)
    lost: list[int] = []
    resumed: list[float] = []

    def cut_power(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "metrics" and not lost and "pod 1: attempt 1 does steps" in launch.log:
            pod = next(one for one in launch.objects("pods") if "-1-1-" in one["metadata"]["name"])
            lost.append(int(pod["spec"]["nodeName"].removeprefix("node")))
            launch.cluster.cluster.kill_node(lost[0])
        if event.kind == "started" and lost:
            resumed.append(time.monotonic())

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("steps steps", steps=200, nodes=2)
    result = launcher.run(launch.job, launch.folder, cut_power, launch.log.append, profile)
    assert result.attempts == 2
    assert any(f"on node{lost[0]} was taken away" in line for line in launch.log)
    assert metric_steps(launch.events)[-1] == 199
    assert launch.left() == []


def test_a_cancelled_run_leaves_nothing_after_ten_seconds_and_goes_on_later(launching: Launch) -> None:
    launch = launching()
    cancelled: list[float] = []

    def cancel(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "metrics" and event.step >= 5:
            cancelled.append(time.monotonic())
            raise KeyboardInterrupt

    profile = launch.profile("steps", steps=30, nodes=2)
    launcher = Platform(launch.settings).launcher
    with pytest.raises(KeyboardInterrupt):
        launcher.run(launch.job, launch.folder, cancel, launch.log.append, profile)
    assert launch.left() == []
    assert time.monotonic() - cancelled[0] < 10
    launch.run(profile)
    steps = metric_steps(launch.events)
    assert steps[-1] == 29
    assert next(event.step for event in launch.events if event.kind == "started" and event.step) >= 5


def test_a_cancelled_worker_that_does_not_listen_is_gone_after_ten_seconds(launching: Launch) -> None:
    launch = launching(workers=1)
    cancelled: list[float] = []

    def cancel(_: TrainingEvent) -> None:
        cancelled.append(time.monotonic())
        raise KeyboardInterrupt

    launcher = Platform(launch.settings).launcher
    with pytest.raises(KeyboardInterrupt):
        launcher.run(launch.job, launch.folder, cancel, launch.log.append, launch.profile("deaf"))
    assert launch.left() == []
    assert time.monotonic() - cancelled[0] < 10


def test_a_killed_launcher_is_swept_after(launching: Launch) -> None:
    launch = launching(lease_seconds=KubernetesSettings().lease_seconds)
    process = launch.start(launch.profile("steps", steps=3000, nodes=2))
    launch.wait_for_events(process, 3)
    process.kill()
    process.wait()
    killed = time.monotonic()
    assert len(launch.objects("pods")) == 2
    while not (said := launch.sweep()).startswith("removed"):
        assert time.monotonic() - killed < 60
        time.sleep(EVERY_SECONDS)  # as the daemon's sensor
    assert launch.job.fingerprint[:12] in said
    assert launch.left() == []
    assert time.monotonic() - killed < 60


def test_a_launcher_started_again_within_the_lease_attaches(launching: Launch) -> None:
    launch = launching()
    profile = launch.profile("steps", steps=300, nodes=2)
    process = launch.start(profile)
    launch.wait_for_events(process, 3)
    before = launch.uids("jobs,pods")
    process.kill()
    process.wait()
    seen: list[set[str]] = []

    def note(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.step == 250:
            seen.append(launch.uids("jobs,pods"))

    launcher = Platform(launch.settings).launcher
    result = launcher.run(launch.job, launch.folder, note, launch.log.append, profile)
    assert seen == [before]
    assert result.attempts == 1
    assert metric_steps(launch.events) == list(range(300))
    assert launch.starts() == 0
    assert launch.left() == []


def test_a_launcher_that_slept_through_its_lease_begins_again(launching: Launch) -> None:
    launch = launching(lease_seconds=4)
    process = launch.start(launch.profile("steps", steps=400, nodes=2))
    launch.wait_for_events(process, 3)
    before = launch.uids("jobs")
    os.kill(process.pid, signal.SIGSTOP)
    waited_for(lambda: Platform(launch.settings).launcher.sweep() != [], "the sleeper to be swept", 60)
    assert launch.left() == []
    os.kill(process.pid, signal.SIGCONT)
    assert process.stdout is not None
    told = process.stdout.read().splitlines()
    assert process.wait() == 0, told
    assert told[-1] == "result 1"
    assert sum(line.startswith("log started train-") for line in told) == 1
    assert before.isdisjoint(launch.uids("jobs"))
    assert launch.left() == []


def test_twins_run_one_job_and_get_the_same_result_and_events(launching: Launch) -> None:
    launch = launching()
    profile = launch.profile("steps", steps=300, nodes=2)
    twin = launch.start(profile)
    result = launch.run(profile)
    assert twin.stdout is not None
    told = twin.stdout.read().splitlines()
    assert twin.wait() == 0
    assert told[-1] == f"result {result.attempts}" == "result 1"
    assert [f"event {event.kind} {event.step}" for event in launch.events] == [
        line for line in told if line.startswith("event ")
    ]
    assert launch.left() == []


def test_an_api_server_killed_in_the_middle_is_ridden_out(launching: Launch) -> None:
    launch = launching(max_attempts=1)
    killed: list[float] = []

    def kill(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.step == 20 and not killed:
            killed.append(time.monotonic())
            launch.cluster.cluster.kill("kube-apiserver")
            time.sleep(5)  # away for a while, not only restarted
            launch.cluster.cluster.restart("kube-apiserver")

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("steps", steps=400, nodes=2)
    result = launcher.run(launch.job, launch.folder, kill, launch.log.append, profile)
    assert result.attempts == 1
    assert metric_steps(launch.events) == list(range(400))
    assert launch.starts() == 1
    waited_for(lambda: launch.left() == [], "nothing to be left", 10, lambda: str(launch.left()))


def test_every_line_of_a_long_log_is_told_once(launching: Launch) -> None:
    """More than the kubelet keeps in one file: it is rotated while it is read."""
    launch = launching(workers=1)
    launch.run(launch.profile("lines", steps=40_000))
    numbers = [int(line.split()[3]) for line in launch.log if line.startswith("pod 0: line ")]
    assert numbers == list(range(40_000))

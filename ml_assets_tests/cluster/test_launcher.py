"""The launcher on a real cluster: results, failures and their words, attempts, and that nothing is left behind."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import (
    LaunchedJob,
    logged_steps,
    rightful_kubeconfig,
)
from resources.job.errors import (
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
from resources.job.events import TrainingEvent, training_folder_name
from resources.launcher.kubernetes.cluster_checks import cluster_checks
from resources.platform import Platform

Launch = Callable[..., LaunchedJob]
pytestmark = pytest.mark.timeout(900)


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
    assert {f"pod {index}: attempt 1 does steps" for index in range(2)} <= set(launch.log)
    assert launch.left() == []
    assert launch.run(profile) == result
    assert launch.events == []
    assert launch.starts() == 1


def test_the_account_of_a_run_may_do_all_that_a_training_needs(
    launching: Launch, tidy: ClusterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = rightful_kubeconfig(tidy, "run", tmp_path)
    launch = launching(workers=1).with_kubernetes(context="run")
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert launch.run(launch.profile("3 done")).attempts == 2
    assert launch.left() == []
    well = [check() for _, check in cluster_checks(launch.settings)]
    assert len(well) == 4


def test_an_account_that_may_not_watch_trains_and_names_the_right(
    launching: Launch, tidy: ClusterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade of the image before that of the chart."""
    config = rightful_kubeconfig(tidy, "run", tmp_path, without="watch")
    launch = launching(workers=1).with_kubernetes(context="run")
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert launch.run(launch.profile("3 done")).attempts == 2
    for kind in ("jobs", "pods"):
        assert any(f'cannot watch resource "{kind}"' in line for line in launch.log), launch.log
    assert launch.left() == []


@pytest.mark.parametrize(
    ("plan", "error"), [("64", BadConfiguration), ("65|1", Diverged), ("66|1", InputChanged)]
)
def test_a_final_exit_code_is_its_error_and_is_not_tried_again(
    launching: Launch, plan: str, error: type[TrainingFailed]
) -> None:
    launch = launching()
    with pytest.raises(error, match="reason of attempt 1"):
        launch.run(launch.profile(f"{plan} done", nodes=2))
    assert launch.starts() == 1
    assert launch.left() == []


def test_a_pod_out_of_memory_is_final_and_names_its_limit(launching: Launch) -> None:
    launch = launching(workers=1)
    with pytest.raises(OutOfMemory, match=r"pod 0 on node\d .*memory.*128Mi"):
        launch.run(launch.profile("hungry done", memory="128Mi"))
    assert launch.starts() == 1
    assert launch.left() == []


def test_an_image_that_is_missing_is_final_and_named(launching: Launch) -> None:
    launch = launching(workers=1).with_kubernetes(image="localhost/nowhere:1", unschedulable_seconds=4)
    with pytest.raises(ImageUnavailable, match=r"pod 0 .*image localhost/nowhere:1"):
        launch.run(launch.profile("done"))
    assert launch.left() == []


def test_a_queue_where_there_are_none_is_refused_with_what_helps(launching: Launch) -> None:
    launch = launching(workers=1).with_kubernetes(unschedulable_seconds=3)
    with pytest.raises(Unschedulable, match=r"install Kueue .*resources\.queue, team-a"):
        launch.run(launch.profile("done", queue="team-a"))
    assert launch.left() == []


def test_a_pod_too_large_for_every_node_is_final_with_the_schedulers_words(launching: Launch) -> None:
    launch = launching(workers=1).with_kubernetes(unschedulable_seconds=3)
    with pytest.raises(Unschedulable, match=r"512 CPU, .*2 Insufficient cpu"):
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


@pytest.mark.timeout(900)
def test_a_deadline_is_final_and_keeps_the_checkpoint(launching: Launch) -> None:
    launch = launching()
    # The deadline's clock begins with the Job, and a loaded machine starts its pods late. An attempt that had no step
    # to keep is repeated with twice the time.
    for minutes in (0.2, 0.4, 0.8, 1.6, 3.2):
        launch.events.clear()
        launch.log.clear()
        with pytest.raises(DeadlineExceeded, match=rf"deadline_minutes, {minutes:g}"):
            launch.run(launch.profile("steps", steps=100_000, nodes=2, deadline_minutes=minutes))
        assert launch.starts() == 1
        if logged_steps(launch.events):
            break
    assert Platform(launch.settings).artifacts.exists(training_folder_name(launch.job), "step.json")
    assert launch.left() == []


def test_other_ends_are_tried_again_within_the_budget(launching: Launch) -> None:
    launch = launching(workers=1)
    assert launch.run(launch.profile("kill 3 done")).attempts == 3
    assert [line for line in launch.log if "failures: resuming" in line] == [
        next(line for line in launch.log if "1 of 3 failures" in line),
        next(line for line in launch.log if "exit code 3" in line and "2 of 3 failures" in line),
    ]
    again = launching(workers=1, max_attempts=2)
    with pytest.raises(AttemptsExhausted, match=r"(?s)2 attempts.*code 4.*2 does 4"):
        again.run(again.profile("kill 4 done"))
    assert launch.left() == again.left() == []


@pytest.mark.parametrize(("backend", "place"), [("job", 0), ("jobset", 1)])
def test_the_last_attempt_has_nodes_that_nobody_takes_away(
    launching: Launch, backend: str, place: int
) -> None:
    """With each of the two nodes in turn as the one on demand, so that chance does not pass the test."""
    spot = launching(workers=1, max_attempts=2)
    node = sorted(one["metadata"]["name"] for one in spot.cluster.objects("nodes"))[place]
    launch = spot.with_kubernetes(on_demand={"kubernetes.io/hostname": node}, backend=backend)
    profile = launch.profile("kill steps", steps=5, on_demand_last=True)
    pods: dict[str, str] = {}

    def note(event: TrainingEvent) -> None:
        for pod in launch.objects("pods"):
            pods[pod["metadata"]["labels"]["ml-assets/attempt"]] = pod["spec"]["nodeName"]

    assert Platform(launch.settings).launcher.run(launch.job, launch.folder, note, launch.log.append, profile)
    assert pods["2"] == node
    started = [line.partition(", on nodes with ") for line in launch.log if line.startswith("started train-")]
    assert [where for *_, where in started] == ["", f"kubernetes.io/hostname={node}"]
    assert launch.left() == []
    with pytest.raises(BadConfiguration, match="set ML_ASSETS_KUBERNETES_ON_DEMAND"):
        spot.run(profile)


@pytest.mark.parametrize("how", ["delete", "evict", "force"])
def test_a_pod_taken_away_is_noticed_and_costs_no_budget(launching: Launch, how: str) -> None:
    launch = launching(max_attempts=1)
    taken: list[float] = []
    started: list[float] = []

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
        if event.kind == "started":
            started.append(time.monotonic())

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("steps steps", steps=200, nodes=2)
    began = time.monotonic()
    result = launcher.run(launch.job, launch.folder, take_one, launch.log.append, profile)
    assert result.attempts == 2
    # The taken pod may use its grace; then pods start once more, which on this machine takes as long as before.
    first, resumed = started
    assert resumed - taken[0] < profile.grace_seconds + 3 * (first - began), launch.log
    steps = logged_steps(launch.events)
    assert steps == sorted(set(steps)) == list(range(200))
    assert launch.left() == []


GRACE_SECONDS = 120
"""Far more than a cancelled run waits for its pods: the launcher gives them 5 s, whatever their profile allows."""


def test_a_cancelled_run_leaves_nothing_at_once_and_goes_on_later(launching: Launch) -> None:
    launch = launching()
    cancelled: list[float] = []

    def cancel(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "metrics" and event.step >= 5:
            cancelled.append(time.monotonic())
            raise KeyboardInterrupt

    profile = launch.profile("steps", steps=300, nodes=2, grace_seconds=GRACE_SECONDS)
    launcher = Platform(launch.settings).launcher
    with pytest.raises(KeyboardInterrupt):
        launcher.run(launch.job, launch.folder, cancel, launch.log.append, profile)
    assert launch.left() == []
    assert time.monotonic() - cancelled[0] < GRACE_SECONDS
    launch.run(profile)
    steps = logged_steps(launch.events)
    assert steps[-1] == 299
    assert next(event.step for event in launch.events if event.kind == "started" and event.step) >= 5


def test_a_cancelled_worker_that_ignores_signals_is_gone_within_its_grace(launching: Launch) -> None:
    launch = launching(workers=1)
    cancelled: list[float] = []

    def cancel(_: TrainingEvent) -> None:
        cancelled.append(time.monotonic())
        raise KeyboardInterrupt

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("deaf", grace_seconds=GRACE_SECONDS)
    with pytest.raises(KeyboardInterrupt):
        launcher.run(launch.job, launch.folder, cancel, launch.log.append, profile)
    assert launch.left() == []
    assert time.monotonic() - cancelled[0] < GRACE_SECONDS

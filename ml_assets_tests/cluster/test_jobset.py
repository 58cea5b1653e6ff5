"""Trainings whose pods the cluster restarts (JobSet, TrainJob): they go on while no launcher lives, and launchers come
back.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.launched_job import (
    KINDS_OF,
    LaunchedJob,
    logged_steps,
    rightful_kubeconfig,
    take_right,
)
from ml_assets_tests.cluster.trained_job import assert_as_if_left_alone
from resources.job.errors import AttemptsExhausted, Diverged, TrainingFailed
from resources.job.events import TrainingEvent, recoveries_of
from resources.job.job import TrainingResult
from resources.launcher.kubernetes.attempt_objects import TYPES, BackEnd
from resources.launcher.kubernetes.cluster_checks import (
    NEEDED,
    NEEDED_FOR_JOBSETS,
    NEEDED_FOR_TRAINJOBS,
    cluster_checks,
)
from resources.launcher.resource_profile import ResourceProfile
from resources.platform import Platform

Launch = Callable[..., LaunchedJob]
Restarted = Callable[[LaunchedJob, str], LaunchedJob]
pytestmark = pytest.mark.timeout(900)

PROFILE = ResourceProfile(nodes=2, cpu="500m", memory="3Gi", spread="required")
KILLED_LAUNCHERS = 10
CONSIDERED_GONE = ("jobs", "pods", "services")
BOTH = pytest.mark.parametrize("back_end", ["jobset", "trainjob"])


def jobset_of(launch: LaunchedJob) -> dict[str, Any]:
    """Return the training's JobSet."""
    (found,) = launch.objects("jobsets")
    return found


def restarts_of(launch: LaunchedJob) -> tuple[int, int]:
    """Return the restarts of the training's JobSet: all, and those that use budget."""
    status = jobset_of(launch).get("status", {})
    return status.get("restarts", 0), status.get("restartsCountTowardsMax", 0)


def pod_of(launch: LaunchedJob, index: int) -> str:
    """Return the name of a pod of the running attempt."""
    return next(
        one["metadata"]["name"]
        for one in launch.objects("pods")
        if one["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == str(index)
        and not one["metadata"].get("deletionTimestamp")
    )


def node_of_controller(launch: LaunchedJob) -> int:
    """Return the number of the node of JobSet's controller."""
    (pod,) = launch.cluster.cluster.objects("pods", "--namespace=jobset-system")
    return int(pod["spec"]["nodeName"].removeprefix("node"))


def kill_ranks(launch: LaunchedJob, index: int) -> None:
    """Kill every process of a pod but its agent, which reports it."""
    pod = pod_of(launch, index)
    launch.cluster.kubectl("exec", pod, "--", "sh", "-c", "kill -9 -1 || true")


def killed(process: "subprocess.Popen[str]") -> None:
    """Kill a launcher as a lost node does: it cleans up nothing."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def assert_nothing_left(launch: LaunchedJob) -> None:
    def left() -> list[str]:
        kinds = (*KINDS_OF[launch.settings.kubernetes.backend], *CONSIDERED_GONE)
        found = {kind: launch.cluster.objects(kind) for kind in kinds}
        return [f"{kind} {one['metadata']['name']}" for kind, all_of in found.items() for one in all_of]

    # The Service belongs to the JobSet, and the cluster removes it a moment later.
    waited_for(lambda: left() == [], "nothing to be left", 60, lambda: str(left()))


@BOTH
def test_a_jobset_trains_on_two_nodes_and_leaves_nothing(
    launching: Launch, restarted: Restarted, back_end: str
) -> None:
    launch = restarted(launching(), back_end)
    nodes: set[str] = set()
    seen: list[str] = []

    def note(event: TrainingEvent) -> None:
        nodes.update(one["spec"]["nodeName"] for one in launch.objects("pods"))
        seen[:] = launch.cluster.kubectl("get", back_end).splitlines()

    profile = launch.profile("steps", steps=20, nodes=2)
    launcher = Platform(launch.settings).launcher
    result = launcher.run(launch.job, launch.folder, note, launch.log.append, profile)
    assert result.attempts == 1
    assert len(nodes) == 2
    assert f"train-{launch.job.fingerprint[:12]}" in "".join(seen)
    assert {f"pod {index}: attempt 1 does steps" for index in range(2)} <= set(launch.log)
    assert launch.objects("leases") == []
    assert_nothing_left(launch)


@BOTH
def test_a_worker_killed_without_a_launcher_resumes_on_the_server(
    make_trained_job: Launch, restarted: Restarted, back_end: str, tmp_path: Path
) -> None:
    launch = restarted(make_trained_job(pace=0.1, max_attempts=2), back_end)
    process = launch.start(PROFILE)
    launch.wait_for_events(process, 20)
    killed(process)
    kill_ranks(launch, 1)
    waited_for(lambda: restarts_of(launch) == (1, 1), "the JobSet to restart", 300)
    result = launch.run(PROFILE)
    assert any(line.startswith("attached to train-") for line in launch.log), launch.log
    assert launch.starts() == 0
    assert result.attempts == 2
    (recovery,) = recoveries_of(launch.events)
    assert recovery.rows_repeated == 0
    assert_as_if_left_alone(launch, result, tmp_path / "here")
    assert_nothing_left(launch)


@pytest.mark.alone
@pytest.mark.nightly
def test_ten_killed_launchers_lose_and_repeat_no_step(
    make_trained_job: Launch,
    restarted: Restarted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launch = restarted(make_trained_job(pace=0.4, epochs=5, patience=5, max_attempts=1), "jobset")
    uids: set[str] = set()
    for number in range(KILLED_LAUNCHERS):
        process = launch.start(PROFILE)
        launch.wait_for_events(process, 3 + number)
        killed(process)
        uids |= launch.uids("jobsets,jobs,pods")
    result = launch.run(PROFILE)
    steps = logged_steps(launch.events)
    repeated, lost = len(steps) - len(set(steps)), len(set(range(1, result.steps + 1)) - set(steps))
    with capsys.disabled():
        print(
            f"\n{KILLED_LAUNCHERS} launchers killed: {lost} steps lost, {repeated} repeated, of {result.steps}"
        )
    assert (lost, repeated) == (0, 0)
    assert len(uids) == 4, "one JobSet, one Job, two pods"
    assert result.attempts == 1
    assert_as_if_left_alone(launch, result, tmp_path / "here")
    assert_nothing_left(launch)


@pytest.mark.alone
@pytest.mark.nightly
@pytest.mark.parametrize("back_end", ["job", "jobset", "trainjob"])
@pytest.mark.parametrize("how", ["killed", "deleted"])
def test_the_next_step_follows_the_death_of_a_worker(
    make_trained_job: Launch,
    restarted: Restarted,
    back_end: str,
    how: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prints the seconds of each back end."""
    launch = restarted(make_trained_job(pace=0.1, max_attempts=2), back_end)
    at: dict[str, float] = {}

    def take_one(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "metrics" and event.step >= 45 and "taken" not in at:
            pod = pod_of(launch, 1)
            if how == "killed":
                kill_ranks(launch, 1)
            else:
                launch.cluster.kubectl("delete", "pod", pod, "--wait=false")
            at["taken"] = time.time()
        if event.kind == "resumed":
            at["from"] = event.step
        if event.kind == "metrics" and "from" in at:
            at.setdefault("trained", event.time)

    launcher = Platform(launch.settings).launcher
    result = launcher.run(launch.job, launch.folder, take_one, launch.log.append, PROFILE)
    assert result.attempts == 2
    with capsys.disabled():
        print(f"\n{back_end}, worker {how}: next trained step after {at['trained'] - at['taken']:.1f} s")
    assert_nothing_left(launch)


@pytest.mark.parametrize(("plan", "error"), [("65|1", Diverged), ("4", AttemptsExhausted)])
@BOTH
def test_a_failure_without_another_attempt_is_its_error(
    launching: Launch, restarted: Restarted, back_end: str, plan: str, error: type[TrainingFailed]
) -> None:
    launch = restarted(launching(max_attempts=1 if error is AttemptsExhausted else 3), back_end)
    with pytest.raises(error, match=r"(?s)reason of attempt 1|1 attempts.*code 4.*1 does 4"):
        launch.run(launch.profile(f"{plan} done", nodes=2))
    assert not any("starts attempt 2" in line for line in launch.log), launch.log
    assert_nothing_left(launch)


def test_other_ends_are_restarted_within_the_budget(launching: Launch, restarted: Restarted) -> None:
    launch = restarted(launching(workers=1), "jobset")
    assert launch.run(launch.profile("kill 3 done")).attempts == 3
    assert [line for line in launch.log if "starts attempt" in line] == [
        next(line for line in launch.log if "starts attempt 2; 1 of 3 failures" in line),
        next(line for line in launch.log if "starts attempt 3; 2 of 3 failures" in line),
    ]
    assert_nothing_left(launch)


@BOTH
def test_a_final_failure_without_a_launcher_ends_the_jobset(
    launching: Launch, restarted: Restarted, back_end: str
) -> None:
    """The launch that comes back is told; the cluster tried no other attempt."""
    launch = restarted(launching(workers=1), back_end)
    process = launch.start(launch.profile("65 done"))
    waited_for(lambda: launch.objects("jobsets") != [], "the JobSet", 60)
    killed(process)
    waited_for(
        lambda: jobset_of(launch).get("status", {}).get("terminalState") == "Failed",
        "the JobSet to fail",
        120,
    )
    assert restarts_of(launch) == (0, 0)
    assert launch.run(launch.profile("done")).attempts == 1, "another launch begins anew"
    assert_nothing_left(launch)


@pytest.mark.parametrize("how", ["delete", "evict"])
def test_a_pod_taken_away_costs_no_attempt(launching: Launch, restarted: Restarted, how: str) -> None:
    launch = restarted(launching(max_attempts=1), "jobset")
    taken: list[float] = []
    restarts: list[tuple[int, int]] = []

    def take_one(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "started" and taken:
            restarts.append(restarts_of(launch))
        if event.step < 10 or taken or "pod 1: attempt 1 does steps" not in launch.log:
            return
        taken.append(time.monotonic())
        pod = pod_of(launch, 1)
        if how == "evict":
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
            path = f"/api/v1/namespaces/{launch.cluster.namespace}/pods/{pod}/eviction"
            launch.cluster.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))
        else:
            launch.cluster.kubectl("delete", "pod", pod, "--wait=false")

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("steps steps", steps=200, nodes=2)
    result = launcher.run(launch.job, launch.folder, take_one, launch.log.append, profile)
    assert result.attempts == 2
    assert restarts == [(1, 0)]
    assert logged_steps(launch.events) == list(range(200))
    assert_nothing_left(launch)


@pytest.mark.alone
@pytest.mark.nightly
def test_a_lost_node_costs_no_attempt_while_a_launcher_lives(launching: Launch, restarted: Restarted) -> None:
    """The cluster alone waits for that node: the launcher gives it up."""
    launch = restarted(launching(max_attempts=1), "jobset")
    lost: list[int] = []

    def lose_node(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "metrics" and event.step >= 10 and not lost:
            # Another node than that of JobSet's controller, which would be away for minutes.
            kept = node_of_controller(launch)
            lost.extend({1, 2} - {kept})
            launch.cluster.cluster.kill_node(lost[0])

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("steps steps", steps=1200, nodes=2, spread="preferred")
    result: TrainingResult = launcher.run(launch.job, launch.folder, lose_node, launch.log.append, profile)
    assert lost
    assert any("was removed by the cluster (DeletionByTaintManager" in line for line in launch.log), (
        launch.log
    )
    assert logged_steps(launch.events)[-1] == 1199
    assert result.attempts == 1, "the same restart: the JobSet made its Job again"
    launch.cluster.cluster.start_node(lost[0])
    assert_nothing_left(launch)


@BOTH
def test_a_cancelled_run_leaves_nothing_at_once(
    launching: Launch, restarted: Restarted, back_end: str
) -> None:
    launch = restarted(launching(), back_end)
    cancelled: list[float] = []

    def cancel(event: TrainingEvent) -> None:
        if event.kind == "metrics" and event.step >= 5:
            cancelled.append(time.monotonic())
            raise KeyboardInterrupt

    grace_seconds = 120
    profile = launch.profile("steps", steps=300, nodes=2, grace_seconds=grace_seconds)
    launcher = Platform(launch.settings).launcher
    with pytest.raises(KeyboardInterrupt):
        launcher.run(launch.job, launch.folder, cancel, launch.log.append, profile)
    assert time.monotonic() - cancelled[0] < grace_seconds
    assert launch.objects("jobsets,jobs,pods") == []
    assert_nothing_left(launch)


@BOTH
def test_the_account_of_a_run_may_do_all_that_a_jobset_needs(
    launching: Launch,
    restarted: Restarted,
    back_end: BackEnd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = restarted(launching(workers=1), back_end)
    config = rightful_kubeconfig(launch.cluster, "run", tmp_path)
    launch = launch.with_kubernetes(context="run")
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert launch.run(launch.profile("3 done")).attempts == 2
    well = {name: check() for name, check in cluster_checks(launch.settings)}
    needed = NEEDED + NEEDED_FOR_JOBSETS + NEEDED_FOR_TRAINJOBS * (back_end == "trainjob")
    assert well["cluster rights"].startswith(f"all {len(needed)} permissions")
    assert well[f"cluster {back_end}s"].startswith(TYPES[back_end]["apiVersion"])
    assert_nothing_left(launch)


@pytest.mark.parametrize("back_end", ["jobset", "trainjob"])
def test_a_doctor_names_the_missing_right_to_jobsets(
    launching: Launch,
    restarted: Restarted,
    back_end: BackEnd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = restarted(launching(workers=1), back_end)
    monkeypatch.setenv("KUBECONFIG", str(rightful_kubeconfig(launch.cluster, "run", tmp_path)))
    take_right(launch.cluster, f"{back_end}s")
    checks = dict(cluster_checks(launch.with_kubernetes(context="run").settings))
    with pytest.raises(TrainingFailed, match=rf"may not create {back_end}s, .*{back_end}\.enabled"):
        checks["cluster rights"]()

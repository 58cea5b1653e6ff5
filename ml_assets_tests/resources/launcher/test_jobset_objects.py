"""The JobSet of a training: what its rules do after each end of a pod, what its pods are told; as a TrainJob."""

import re
from typing import Any

import pytest

from ml_assets_tests.resources.launcher.pod_documents import ended, failed_job
from ml_assets_tests.resources.launcher.scripted_jobs import job_of
from resources.launcher.kubernetes.attempt_objects import MANAGED, QUEUE, TRAINING
from resources.launcher.kubernetes.classify import end_of
from resources.launcher.kubernetes.jobset_objects import JobSetState, jobset_manifest
from resources.launcher.kubernetes.pod_state import Pod
from resources.launcher.kubernetes.trainjob_objects import runtime_manifest, trainjob_manifest
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import KubernetesSettings

JOB = job_of("done", max_attempts=4)
NAME = f"train-{JOB.fingerprint[:12]}"
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


def manifest_of(profile: ResourceProfile, run_id: str = "the-run") -> dict[str, Any]:
    return jobset_manifest(
        JOB,
        profile,
        KubernetesSettings(image="trainer:1"),
        folder="s3://b/p/training/small/x",
        snapshot="s3://b/p/snapshots/y",
        s3_endpoint_url=None,
        run_id=run_id,
    )


def job_template(profile: ResourceProfile) -> dict[str, Any]:
    (replicated,) = manifest_of(profile)["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    return replicated["template"]


def action_after(pod: dict[str, Any]) -> str:
    """Return what the cluster does after this end of a pod, in the steps of both controllers."""
    spec = manifest_of(ResourceProfile())["spec"]
    (replicated,) = spec["replicatedJobs"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(replicated["template"]["spec"]["podFailurePolicy"]["rules"]):
        code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        conditions = {(one["type"], one["status"]) for one in pod["status"]["conditions"]}
        if code in rule.get("onExitCodes", {}).get("values", ()) or any(
            (one["type"], one["status"]) in conditions for one in rule.get("onPodConditions", ())
        ):
            reason, message = "PodFailurePolicy", f"Pod a/b matching {rule['action']} rule at index {index}"
            break
    for rule in spec["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(one, message) for one in patterns):
            return rule["action"]
    return "RestartJobSet"


@pytest.mark.parametrize(
    "pod",
    [
        *(
            pytest.param(ended(0, code), id=f"exit {code}")
            for code in (1, 64, 65, 66, 67, 68, 75, 76, 137, 139)
        ),
        pytest.param(ended(0, 143, conditions=(DISRUPTED,)), id="evicted"),
        pytest.param(ended(0, 65, conditions=(DISRUPTED,)), id="evicted after a final failure"),
    ],
)
def test_the_cluster_decides_as_the_launcher_does(pod: dict[str, Any]) -> None:
    end = end_of(failed_job(), [Pod.of(pod)], (), ResourceProfile(), "")
    launcher_says = "FailJobSet" if end.error is not None else end.kind
    actions = {"preempted": "RestartJobSetAndIgnoreMaxRestarts", "failed": "RestartJobSet"}
    assert action_after(pod) == actions.get(launcher_says, launcher_says)


def test_attempts_of_the_settings_are_restarts_of_the_jobset() -> None:
    assert manifest_of(ResourceProfile())["spec"]["failurePolicy"]["maxRestarts"] == 3


def test_a_missed_deadline_fails_it_at_once() -> None:
    policy = manifest_of(ResourceProfile(deadline_minutes=1.5))["spec"]["failurePolicy"]
    assert [one["action"] for one in policy["rules"] if "DeadlineExceeded" in one["onJobFailureReasons"]] == [
        "FailJobSet"
    ]
    assert job_template(ResourceProfile(deadline_minutes=1.5))["spec"]["activeDeadlineSeconds"] == 90


def test_pods_meet_at_a_name_that_stays_over_restarts() -> None:
    spec = job_template(ResourceProfile(nodes=2))["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (2, 2, 0)
    pod = spec["template"]["spec"]
    told = {one["name"]: one.get("value", one.get("valueFrom")) for one in pod["containers"][0]["env"]}
    assert told["MASTER_ADDR"] == f"{NAME}-workers-0-0.{NAME}"
    assert pod["subdomain"] == NAME
    assert (
        told["TRAINING_RESTARTS"]["fieldRef"]["fieldPath"]
        == "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
    )
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_its_job_is_not_taken_for_a_launchers() -> None:
    """A pruner removes a launcher's Job without a Lease; a policy of the chart refuses it without a queue."""
    name, _, value = MANAGED.partition("=")
    assert manifest_of(ResourceProfile())["metadata"]["labels"][name] == value
    assert name not in job_template(ResourceProfile())["metadata"]["labels"]
    assert job_template(ResourceProfile())["spec"]["template"]["metadata"]["labels"][name] == value


def test_a_queue_admits_the_jobset_and_not_its_job() -> None:
    queued = manifest_of(ResourceProfile(queue="team-a"))
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert queued["spec"]["suspend"] is True
    assert "suspend" not in job_template(ResourceProfile(queue="team-a"))["spec"]
    assert "suspend" not in manifest_of(ResourceProfile())["spec"]


def test_a_run_is_named_if_one_waits() -> None:
    assert manifest_of(ResourceProfile())["metadata"]["annotations"]["ml-assets/run"] == "the-run"
    assert "ml-assets/run" not in manifest_of(ResourceProfile(), run_id="")["metadata"]["annotations"]


def test_a_trainjob_holds_the_jobset_but_what_its_end_and_queue_need() -> None:
    """Trainer would make a JobSet again that is removed an hour after its end."""
    jobset = manifest_of(ResourceProfile(queue="team-a"))
    runtime, trainjob = runtime_manifest(jobset, "its-runtime"), trainjob_manifest(jobset, "its-runtime")
    assert trainjob["metadata"] == jobset["metadata"]
    assert trainjob["spec"] == {
        "runtimeRef": {"kind": "TrainingRuntime", "name": "its-runtime"},
        "suspend": True,
    }
    template = runtime["spec"]["template"]
    assert jobset["spec"] == template["spec"] | {"suspend": True, "ttlSecondsAfterFinished": 3600}
    assert not {"suspend", "ttlSecondsAfterFinished"} & template["spec"].keys()
    assert QUEUE not in runtime["metadata"]["labels"]
    assert template["metadata"]["labels"] == {TRAINING: JOB.fingerprint[:12]}, (
        "no policy takes it for a launcher's"
    )


def state_of(**status: Any) -> JobSetState:
    return JobSetState.of({"status": status})


def test_the_last_failure_is_counted_though_nothing_was_restarted() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "message": "no more"}
    state = state_of(restarts=5, restartsCountTowardsMax=3, terminalState="Failed", conditions=[failed])
    assert (state.restarts, state.failures, state.outcome, state.why) == (5, 4, "Failed", "no more")


def test_a_jobset_without_a_status_has_just_begun() -> None:
    assert JobSetState.of({}) == JobSetState(restarts=0, failures=0, outcome="", why="")

"""Classification of real pods, Jobs and events of a Kubernetes 1.34 cluster.

Each file of `recorded` is one state. `python -m ml_assets_tests.cluster.record_pods` records them again, where a
cluster runs (`make cluster-up`).
"""

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from resources.job.errors import (
    DeadlineExceeded,
    Diverged,
    ImageUnavailable,
    OutOfDisk,
    OutOfMemory,
    PodNotStarted,
    TrainingFailed,
    Unschedulable,
)
from resources.launcher.kubernetes.classify import (
    StartTimeouts,
    are_done,
    began,
    end_of,
    why_no_pods,
    why_not_started,
)
from resources.launcher.kubernetes.cluster import Document
from resources.launcher.kubernetes.pod_state import Pod
from resources.launcher.resource_profile import ResourceProfile

FOLDER = Path(__file__).with_name("recorded")
PROFILE = ResourceProfile(cpu="50m", memory="64Mi", scratch="20Mi", deadline_minutes=0.05)
PATIENCE = StartTimeouts(start=120, pull=1800)


@dataclass(frozen=True)
class RecordedJob:
    """Answers of the API at one moment."""

    job: Document
    pods: list[Pod]
    events: list[Document]

    @classmethod
    def of(cls, name: str) -> "RecordedJob":
        found = json.loads((FOLDER / f"{name}.json").read_text())
        return cls(found["job"], [Pod.of(one) for one in found["pods"]], found["events"])

    def events_of(self, uid: str) -> list[Document]:
        return [one for one in self.events if one["involvedObject"]["uid"] == uid]

    def why_not(self, seconds: float) -> TrainingFailed | None:
        """Return why the Job's pods are not there, or do not start, when the Job has this age and nothing changed."""
        now = began(self.job) + timedelta(seconds=seconds)
        refused = why_no_pods(self.job, self.events_of(self.job["metadata"]["uid"]), now, PROFILE, PATIENCE)
        return refused or why_not_started(
            self.pods, PROFILE, now, PATIENCE, lambda pod: self.events_of(pod.uid)
        )


INJECTED = "The pipeline did not request it"


@pytest.mark.parametrize(
    ("name", "hoped", "seconds", "error", "said"),
    [
        ("no-node", 119, 180, Unschedulable, "found no node for .*2 Insufficient cpu"),
        ("pulling", 1799, 1860, PodNotStarted, "Pulling image .*ML_ASSETS_KUBERNETES_PULL_SECONDS"),
        ("pulling-after-init", 1799, 1860, PodNotStarted, "ML_ASSETS_KUBERNETES_PULL_SECONDS"),
        ("image-failed-once", 29, 60, ImageUnavailable, "cannot get image localhost/nowhere:1: ErrImagePull"),
        ("image-missing", 29, 60, ImageUnavailable, "ImagePullBackOff: .*refused. Correct ML_ASSETS_KUBERNETES"),
        ("image-name", None, 1, ImageUnavailable, "cannot get image Not/A/Name: InvalidImageName"),
        ("secret-missing", 9, 60, PodNotStarted, 'CreateContainerConfigError: secret "nobody" not found'),
        ("volume-missing", 119, 180, PodNotStarted, 'FailedMount: .*configmap "nobody" not found.*volumes'),
        ("init-running", 119, 180, PodNotStarted, f"init container fetch-keys runs. {INJECTED}"),
        ("init-image-missing", 29, 60, ImageUnavailable, f"of its init container fetch-keys, .*{INJECTED}"),
        (
            "native-sidecar-crashes", 119, 180, PodNotStarted,
            r"its sidecar mesh-proxy ended with exit code 9 \(\d restarts\)",
        ),
        ("no-quota", 119, 180, Unschedulable, "quota of the namespace .*exceeded quota: team"),
        ("refused-by-policy", 9, 60, PodNotStarted, 'violates PodSecurity "restricted:latest"'),
    ],
)  # fmt: skip
def test_a_pod_that_does_not_start_gets_its_time_and_then_its_reason(
    name: str, hoped: float | None, seconds: float, error: type[TrainingFailed], said: str
) -> None:
    recorded = RecordedJob.of(name)
    assert hoped is None or recorded.why_not(hoped) is None
    with pytest.raises(error, match=said):
        raise recorded.why_not(seconds) or AssertionError("it still hopes")
    assert error.final


@pytest.mark.parametrize(
    "name",
    ["running", "running-with-sidecar", "runs-but-sidecar-failed", "ran-after-no-quota"],
)
def test_a_pod_that_runs_is_left_alone(name: str) -> None:
    recorded = RecordedJob.of(name)
    (pod,) = recorded.pods
    assert pod.has_started
    assert not pod.has_ended
    assert pod.trainer.name == "trainer"
    assert recorded.why_not(9999) is None
    assert not are_done(recorded.job, recorded.pods)


def test_an_old_refusal_does_not_end_a_training_with_newer_pods() -> None:
    """The quota was full for a second. An hour later the pods are away for a moment."""
    recorded = RecordedJob.of("ran-after-no-quota")
    assert {"FailedCreate", "SuccessfulCreate"} <= {one["reason"] for one in recorded.events}
    assert RecordedJob(recorded.job, [], recorded.events).why_not(3600) is None


def test_patience_begins_where_the_pod_found_its_node() -> None:
    """A pod that waited 110 s for room has all of its time to start."""
    recorded = RecordedJob.of("volume-missing")
    (pod,) = recorded.pods
    assert pod.placed is not None
    late = json.loads((FOLDER / "volume-missing.json").read_text())
    created = (pod.placed - timedelta(seconds=110)).isoformat()
    late["pods"][0]["metadata"]["creationTimestamp"] = created
    late["job"]["status"]["startTime"] = created
    waited = RecordedJob(late["job"], [Pod.of(one) for one in late["pods"]], late["events"])
    assert waited.why_not(229) is None
    assert isinstance(waited.why_not(232), PodNotStarted)


def test_a_pull_that_broke_off_and_goes_on_is_waited_for() -> None:
    """A registry closed the connection. The second pull runs, and the status still says ErrImagePull."""
    recorded = RecordedJob.of("image-failed-once")
    assert isinstance(recorded.why_not(60), ImageUnavailable)
    again = began(recorded.job) + timedelta(seconds=20)
    for one in recorded.events:
        if one["reason"] == "Pulling":
            one |= {"count": 2, "lastTimestamp": again.isoformat()}
    assert recorded.why_not(60) is None
    assert recorded.why_not(1700) is None
    assert isinstance(recorded.why_not(1860), PodNotStarted)


def test_a_pull_that_fails_late_gets_the_full_time_of_a_registry() -> None:
    """The time counts from the first failure, not from the pod's start."""
    recorded = RecordedJob.of("image-failed-once")
    failed = (began(recorded.job) + timedelta(seconds=300)).isoformat()
    for one in recorded.events:
        if one["reason"] in ("Failed", "BackOff"):
            one |= {"firstTimestamp": failed, "lastTimestamp": failed}
    assert recorded.why_not(329) is None
    assert isinstance(recorded.why_not(331), ImageUnavailable)


def test_without_events_a_pod_that_may_be_pulling_is_waited_for() -> None:
    recorded = RecordedJob.of("pulling")
    silent = RecordedJob(recorded.job, recorded.pods, [])
    assert silent.why_not(1799) is None
    with pytest.raises(PodNotStarted, match="it has no events"):
        raise silent.why_not(1860) or AssertionError("it still hopes")


@pytest.mark.parametrize(
    ("name", "kind", "error", "said"),
    [
        ("succeeded", "done", None, "all pods ended with exit code 0"),
        ("done-with-sidecar", "done", None, "all pods ended with exit code 0"),
        ("done-but-sidecar-failed", "done", None, "all pods ended with exit code 0"),
        ("done-with-native-sidecar", "done", None, "all pods ended with exit code 0"),
        ("diverged", "failed", Diverged, "the loss is nan"),
        ("diverged-with-sidecar", "failed", Diverged, "the loss is nan"),
        ("failed", "failed", None, r"^pod 0 on node\d ended with exit code 3: last words$"),
        ("out-of-memory", "failed", OutOfMemory, r"pod 0 on node\d used more memory than .* 64Mi"),
        ("out-of-memory-with-sidecar", "failed", OutOfMemory, "used more memory than its limit"),
        ("command-missing", "failed", PodNotStarted, "could not run its command: .*/nowhere"),
        ("over-its-scratch", "failed", OutOfDisk, r'EmptyDir volume "scratch" exceeds .*resources\.scratch, 20Mi'),
        ("deadline", "failed", DeadlineExceeded, "resources.deadline_minutes, 0.05"),
        (
            "init-failed", "failed", None,
            f"never ran its trainer: its init container fetch-keys ended with exit code 7. {INJECTED}",
        ),
        ("evicted", "preempted", None, "removed by the cluster .EvictionByEvictionAPI"),
        ("preempted", "preempted", None, "removed by the cluster .PreemptionByScheduler"),
        ("deleted", "preempted", None, r"pod 0 on node\d was deleted"),
        ("node-lost", "preempted", None, "pod 0 on node2 was removed by the cluster .DeletionByTaintManager"),
        ("node-restarted", "preempted", None, "pod 0 on node2 was lost: its node restarted"),
    ],
)  # fmt: skip
def test_an_attempt_that_ended_is_called_what_it_is(
    name: str, kind: str, error: type[TrainingFailed] | None, said: str
) -> None:
    recorded = RecordedJob.of(name)
    end = end_of(recorded.job, recorded.pods, [], PROFILE, "")
    assert end.kind == kind, end
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(end.said)
    assert type(end.error) is (error or type(None))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ", "failed"),
        ('Container trainer exceeded its local ephemeral storage limit "20Mi". ', "failed"),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 1Mi. ", "preempted"),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. ", "preempted"),
    ],
)  # fmt: skip
def test_a_pod_over_its_own_limit_is_told_from_a_node_that_runs_short(message: str, kind: str) -> None:
    """The other words of the kubelet for an eviction, from its source (eviction/helpers.go)."""
    found = json.loads((FOLDER / "over-its-scratch.json").read_text())
    found["pods"][0]["status"]["message"] = message
    end = end_of(found["job"], [Pod.of(one) for one in found["pods"]], [], PROFILE, "")
    assert end.kind == kind
    assert isinstance(end.error, OutOfDisk) == (kind == "failed")
    assert message.strip() in end.said


def test_a_sidecar_that_failed_before_the_trainer_is_named_beside_it() -> None:
    """The trainer lost its connections because the mesh's proxy had ended."""
    found = json.loads((FOLDER / "done-but-sidecar-failed.json").read_text())
    for one in found["pods"][0]["status"]["containerStatuses"]:
        ended = one["state"]["terminated"]
        if one["name"] == "trainer":
            later = datetime.fromisoformat(ended["finishedAt"]) + timedelta(seconds=30)
            ended |= {"exitCode": 1, "reason": "Error", "finishedAt": later.isoformat()}
    end = end_of(found["job"], [Pod.of(one) for one in found["pods"]], [], PROFILE, "")
    assert end.kind == "failed"
    assert re.search("code 1; before,.*mesh-proxy.*code 9", end.said)


def test_a_sidecar_that_fails_one_pod_of_two_is_the_cause_and_uses_budget() -> None:
    """The pod fails, then the Job, which ends the other pod. The other pod saved a checkpoint and is not the cause."""
    found = json.loads((FOLDER / "done-but-sidecar-failed.json").read_text())
    other = json.loads((FOLDER / "over-its-scratch.json").read_text())["pods"][0]
    other["status"] |= {"reason": "", "message": ""}
    found["job"]["spec"]["completions"] = 2
    pods = [Pod.of(one) for one in (*found["pods"], other)]
    assert [pod.exit_code for pod in pods] == [0, 75]
    end = end_of(found["job"], pods, [], PROFILE, "")
    assert end.kind == "failed"
    assert re.search("code 0, but.*mesh-proxy.*code 9", end.said)


def test_every_recorded_state_is_classified_somewhere_here() -> None:
    words = Path(__file__).read_text()
    assert [one.stem for one in FOLDER.glob("*.json") if f'"{one.stem}"' not in words] == []
